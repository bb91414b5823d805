// Elements and the verdict. All text is inserted as text nodes, never as markup.
"use strict";

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null));
  return element;
}

function meter(share) {
  const bar = make("i");
  bar.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return make("div", { class: "meter", "aria-hidden": "true" }, bar);
}

// Show the verdict of the chosen organisation, or that of all together, on top of the page, in the words of the terminal and the reports.
function drawVerdict(run, party) {
  const shown = party === null ? run.verdict : party.verdict;
  const unjudged = run.judged_by_lift ? "What joining is worth to each organisation" : "Whether joining pays was not judged.";
  $("verdict").className = `open banner ${shown?.tone ?? "unclear"}`;
  $("headline").textContent = shown?.headline ?? unjudged;
  $("deciding").textContent = run.judged_by_lift ? "Choose an organisation to see its verdict." : describeUnjudged(run, party);
  $("deciding").hidden = shown !== null;
  for (const [id, texts] of [["points", shown?.points ?? []], ["about", run.about]]) $(id).replaceChildren(...texts.map((text) => make("li", {}, text)));
}

// Without a lift there is no verdict, but the test figures are there.
function describeUnjudged(run, party) {
  const digits = (value) => (value === null || value === undefined ? "–" : value.toFixed(4));
  const texts = (party ? [party] : run.parties).map((one) => {
    const rating = run.predicts ? `RMSE ${digits(one.test?.rmse)}, lower is better; ` : "";
    return `${one.name}: ${rating}NDCG@20 ${digits(one.test?.["ndcg@20"])}, higher is better, and ${digits(one.popularity?.["ndcg@20"])} of its most popular items.`;
  });
  return `${texts.join(" ")} For a verdict, train with preset best.`;
}
