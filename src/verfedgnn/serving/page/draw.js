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

// Show the verdict of the chosen organisation on top of the page, then the overall one. Both use the words of the terminal and the
// reports, and name the figures that decide.
function drawVerdict(run, party) {
  const own = party?.verdict ?? null, shown = own ?? run.verdict, whole = own === null || run.parties.length === 1 ? null : run.verdict;
  $("verdict").className = `open banner ${shown?.tone ?? "unclear"}`;
  const unjudged = run.judged_by_lift ? "What joining is worth to each organisation" : "Whether joining pays was not judged.";
  $("headline").textContent = shown === null ? unjudged : `${own !== null && run.parties.length > 1 ? `${party.name}: ` : ""}${shown.headline}`;
  $("deciding").textContent = shown?.figures ?? (run.judged_by_lift ? "Choose an organisation to see its verdict." : describeUnjudged(run, party));
  $("provisional").textContent = shown?.provisional ?? "";
  $("provisional").hidden = !shown?.provisional;
  $("for-whom").replaceChildren(...(shown?.for_whom ?? []).map((text) => make("li", {}, text)));
  $("for-whom").hidden = !shown?.for_whom.length;
  $("summary").replaceChildren(...(shown?.points ?? []).map((text) => make("li", {}, text)));
  $("points").hidden = !shown?.points.length;
  $("overall").hidden = whole === null;
  $("overall").replaceChildren(...(whole === null ? [] : [make("b", { class: whole.tone }, `All organisations: ${whole.headline}`), ` ${whole.figures}`]));
}

// Without a lift there is no verdict, but the test figures are there.
function describeUnjudged(run, party) {
  const digits = (value) => (value === null || value === undefined ? "–" : value.toFixed(4));
  const texts = (party ? [party] : run.parties).map((one) => {
    const rating = run.predicts ? `RMSE ${digits(one.test?.rmse)}, lower is better; ` : "";
    return `${one.name}: ${rating}NDCG@20 ${digits(one.test?.["ndcg@20"])}, higher is better, and ${digits(one.popularity?.["ndcg@20"])} of its most popular items.`;
  });
  return `${texts.join(" ")} For a verdict with intervals, run: verfedgnn train --resume RUN --lift`;
}
