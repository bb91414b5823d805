// Charts and metrics of the run. All text is inserted as text nodes, never as markup.
"use strict";

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null));
  return element;
}

function vector(tag, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}

const signed = (value, digits = 2) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(digits);

function meter(share) {
  const bar = make("i");
  bar.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return make("div", { class: "meter", "aria-hidden": "true" }, bar);
}

// Draw the validation metric by round, as wide as its box, and mark the kept round.
function drawCurve(box, run) {
  const points = run.history, name = run.ranks ? "NDCG@20" : "RMSE";
  if (points.length < 2) return box.replaceChildren(make("p", { class: "quiet" }, "This run has no learning curve."));
  const width = Math.max(260, box.clientWidth), height = 220, left = 46, right = 12, top = 14, bottom = 34;
  const errors = points.map((point) => point.error), low = Math.min(...errors), high = Math.max(...errors);
  const last = points[points.length - 1].round, first = points[0].round;
  const x = (round) => left + ((round - first) / (last - first || 1)) * (width - left - right);
  const y = (error) => top + ((high - error) / (high - low || 1)) * (height - top - bottom);
  const kept = points.reduce((best, point) => (Math.abs(point.round - run.best_round) < Math.abs(best.round - run.best_round) ? point : best));
  const label = `${name} on the validation part from ${errors[0].toFixed(4)} in round ${first} to ${kept.error.toFixed(4)} in round ${kept.round}, which was kept`;
  const svg = vector("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const share of [0, 0.5, 1]) {
    const error = low + share * (high - low);
    svg.append(vector("line", { class: "axis", x1: left, x2: width - right, y1: y(error), y2: y(error) }));
    svg.append(vector("text", { x: left - 8, y: y(error) + 4, "text-anchor": "end" }, error.toFixed(3)));
  }
  svg.append(vector("line", { class: "kept", x1: x(kept.round), x2: x(kept.round), y1: top, y2: height - bottom }));
  svg.append(vector("polyline", { class: "curve", points: points.map((p) => `${x(p.round).toFixed(1)},${y(p.error).toFixed(1)}`).join(" ") }));
  svg.append(vector("circle", { class: "dot", cx: x(kept.round), cy: y(kept.error), r: 4 }));
  svg.append(vector("text", { x: left, y: height - 10 }, `round ${first}`));
  svg.append(vector("text", { x: width - right, y: height - 10, "text-anchor": "end" }, `${last}`));
  const anchor = x(kept.round) + 120 > width ? "end" : "start", shift = anchor === "end" ? -8 : 8;
  svg.append(vector("text", { x: x(kept.round) + shift, y: top + 8, "text-anchor": anchor }, `kept: round ${kept.round}`));
  const words = run.ranks ? "higher is better" : "lower is better";
  const note = `${name} on the validation part, ${words}. ${run.rounds.toLocaleString("en")} rounds in ${Math.round(run.seconds)} s.`;
  box.replaceChildren(make("p", { class: "quiet" }, note), svg);
}

function drawBytes(box, run) {
  const most = Math.max(1, ...run.messages.map((message) => message.bytes));
  const list = make("ul", { class: "plain kinds" });
  for (const message of run.messages) {
    const what = make("span", { class: "what" }, make("span", { class: "title" }, message.kind), make("span", { class: "kind" }, message.way));
    list.append(make("li", {}, make("div", { class: "line" }, what, make("span", {}, message.size)), meter(message.bytes / most)));
  }
  const note = `${run.bytes.up} to the coordinator, ${run.bytes.down} back; ${run.bytes.per_party_per_round} per organisation and round.`;
  box.replaceChildren(make("p", { class: "quiet" }, note), list);
}

function drawPrivacy(box, run) {
  const releases = make("div", { class: "releases" });
  for (const part of run.privacy.guarantees) {
    const times = part.times === "0" ? "never sent" : `sent ${part.times} times`;
    releases.append(make("div", {}, make("h3", {}, part.release), make("p", { class: "quiet" }, `${part.mechanism}, ${times}`), make("p", {}, part.guarantee)));
  }
  const points = make("ul", { class: "points" }, ...run.privacy.assumptions.map((text) => make("li", {}, text)));
  box.replaceChildren(make("p", { class: "quiet" }, "What each organisation released during training, and how it is protected. Ratings never leave an organisation."), releases, points);
}

function drawWorth(box, run, party) {
  const shown = party ? [party] : run.parties, parts = [];
  for (const one of shown) {
    const known = one.alone !== null && one.federated !== null;
    const change = known ? (run.ranks ? one.federated - one.alone : one.alone - one.federated) : null;
    const figure = (name, label, value) => make("div", { class: name }, make("dt", {}, label), make("dd", {}, value));
    const figures = make("dl", { class: "figures" },
      figure("alone", "alone", one.alone === null ? "–" : one.alone.toFixed(4)),
      figure("federated", "federated", one.federated === null ? "–" : one.federated.toFixed(4)),
      known ? figure(change > 0 ? "gain" : "loss", change > 0 ? "better by" : "worse by", `${(Math.abs(change / one.alone) * 100).toFixed(1)} %`) : null);
    if (shown.length > 1) parts.push(make("h3", {}, one.name));
    if (one.pays && one.pays !== "yes") figures.classList.add("undecided");
    parts.push(figures);
    const pays = { yes: "Joining pays here", no: "Joining does not pay here", "cannot tell": "The data cannot tell whether joining pays here" }[one.pays];
    if (pays && one.gain) parts.push(make("p", { class: "quiet" }, `${pays}. Gain in RMSE: ${signed(one.gain.rmse, 4)} (95 % interval ${signed(one.gain.low, 4)} to ${signed(one.gain.high, 4)}), compared with the better of plain means and training alone.`));
    if (one.alone === null) parts.push(make("p", { class: "quiet" }, "This run has no model trained alone. Train with the best preset or with --lift to compare."));
  }
  const what = run.ranks ? "NDCG@20 on test ratings: how high liked items are ranked in the organisation's catalogue; higher is better." : "Test RMSE: the typical error of a predicted rating, on ratings used neither for training nor for model selection; lower is better.";
  box.replaceChildren(make("p", { class: "quiet" }, what), ...parts);
}
