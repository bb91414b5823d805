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

const METRICS = {
  rmse: { name: "RMSE", what: "Ratings", better: "lower", simple: "means" },
  "ndcg@20": { name: "NDCG@20", what: "Lists", better: "higher", simple: "popularity" },
};
const WAYS = ["simple", "alone", "federated", "pooled"];
const signed = (value, digits = 2) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(digits);

function meter(share) {
  const bar = make("i");
  bar.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return make("div", { class: "meter", "aria-hidden": "true" }, bar);
}

// Draw the validation metric of the runs by round, as wide as the box, and mark the round that the first run kept.
function drawCurve(box, runs) {
  const [run] = runs, drawn = runs.filter((each) => each.judged === run.judged && each.history.length > 1), { name, better } = METRICS[run.judged];
  if (!drawn.includes(run)) return box.replaceChildren(make("p", { class: "quiet" }, "This run has no learning curve."));
  const width = Math.max(260, box.clientWidth), height = 220, left = 46, right = 12, top = 14, bottom = 34;
  const points = drawn.flatMap((each) => each.history), errors = points.map((point) => point.error), rounds = points.map((point) => point.round);
  const low = Math.min(...errors), high = Math.max(...errors), first = Math.min(...rounds), last = Math.max(...rounds);
  const x = (round) => left + ((round - first) / (last - first || 1)) * (width - left - right);
  const y = (error) => top + ((high - error) / (high - low || 1)) * (height - top - bottom);
  const keptBy = (each) => each.history.reduce((best, point) => (Math.abs(point.round - each.best_round) < Math.abs(best.round - each.best_round) ? point : best));
  const kept = keptBy(run);
  const label = drawn.map((each) => `${each.name}: ${name} on the validation part from ${each.history[0].error.toFixed(4)} in round ${each.history[0].round} to ${keptBy(each).error.toFixed(4)} in round ${keptBy(each).round}, which was kept`).join(". ");
  const svg = vector("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const share of [0, 0.5, 1]) {
    const error = low + share * (high - low);
    svg.append(vector("line", { class: "axis", x1: left, x2: width - right, y1: y(error), y2: y(error) }));
    svg.append(vector("text", { x: left - 8, y: y(error) + 4, "text-anchor": "end" }, error.toFixed(3)));
  }
  svg.append(vector("line", { class: "kept", x1: x(kept.round), x2: x(kept.round), y1: top, y2: height - bottom }));
  drawn.forEach((each, index) => svg.append(vector("polyline", { class: `curve c${index % 4}`, points: each.history.map((p) => `${x(p.round).toFixed(1)},${y(p.error).toFixed(1)}`).join(" ") })));
  svg.append(vector("circle", { class: "dot", cx: x(kept.round), cy: y(kept.error), r: 4 }));
  svg.append(vector("text", { x: left, y: height - 10 }, `round ${first}`));
  svg.append(vector("text", { x: width - right, y: height - 10, "text-anchor": "end" }, `${last}`));
  const anchor = x(kept.round) + 120 > width ? "end" : "start", shift = anchor === "end" ? -8 : 8;
  svg.append(vector("text", { x: x(kept.round) + shift, y: top + 8, "text-anchor": anchor }, `kept: round ${kept.round}`));
  const note = `${name} on the validation part, ${better} is better. ${plural(run.rounds, "round")} in ${Math.round(run.seconds)} s.`;
  const legend = drawn.length > 1 ? make("p", { class: "legend" }, ...drawn.map((each, index) => make("span", { class: `c${index % 4}` }, each.name))) : null;
  box.replaceChildren(...[make("p", { class: "quiet" }, note), legend, svg].filter((part) => part !== null));
}

function drawBytes(box, run) {
  const most = Math.max(1, ...run.messages.map((message) => message.bytes));
  const list = make("ul", { class: "plain kinds" });
  for (const message of run.messages) {
    const what = make("span", { class: "what" }, make("span", { class: "title" }, message.kind), make("span", { class: "kind" }, message.way));
    list.append(make("li", {}, make("div", { class: "line" }, what, make("span", {}, message.size)), meter(message.bytes / most)));
  }
  const both = run.ranks && run.predicts ? " in both trainings, of ratings and of lists" : "";
  const note = `${run.bytes.up} to the coordinator and ${run.bytes.down} back${both}; ${run.bytes.per_party_per_round} per organisation and round.`;
  box.replaceChildren(make("p", { class: "quiet" }, note), list);
}

function drawPrivacy(box, run) {
  const releases = make("div", { class: "releases" });
  for (const part of run.privacy.guarantees) {
    const times = part.times === "0" ? "never sent" : `sent ${part.times} times`;
    releases.append(make("div", {}, make("h3", {}, part.release), make("p", { class: "quiet" }, `${part.mechanism}, ${times}`), make("p", {}, part.guarantee)));
  }
  const points = make("ul", { class: "points" }, ...run.privacy.assumptions.map((text) => make("li", {}, text)));
  const { columns, rows } = run.privacy.visibility;
  const head = make("tr", {}, ...columns.map((title) => make("th", { scope: "col" }, title)));
  const body = rows.map(([what, ...seen]) => make("tr", {}, make("th", { scope: "row" }, what), ...seen.map((text, index) => make("td", { "data-title": columns[index + 1] }, text))));
  box.replaceChildren(
    make("h4", {}, "Who sees what"),
    scrolling("Who sees what", make("table", { class: "sees" }, make("thead", {}, head), make("tbody", {}, ...body))),
    make("h4", {}, "What leaves an organisation"),
    make("p", { class: "quiet" }, "What each organisation released during training, and how it is protected. Ratings never leave an organisation."), releases, points);
}

// Show the verdict of the chosen organisation on top of the page, then the overall one. Both use the words of the terminal and the
// reports, and name the figures that decide.
function drawVerdict(run, party) {
  const own = party?.verdict ?? null, shown = own ?? run.verdict, whole = own === null || run.parties.length === 1 ? null : run.verdict;
  $("verdict").className = `open banner ${shown?.tone ?? "unclear"}`;
  const unjudged = run.judged_by_lift ? "What joining is worth to each organisation" : "Whether joining pays was not judged.";
  $("headline").textContent = shown === null ? unjudged : `${own !== null && run.parties.length > 1 ? `${party.name}: ` : ""}${shown.headline}`;
  $("deciding").textContent = shown?.figures ?? (run.judged_by_lift ? "Choose an organisation to see its verdict." : describeUnjudged(run, party));
  $("overall").hidden = whole === null;
  $("overall").replaceChildren(...(whole === null ? [] : [make("b", { class: whole.tone }, `All organisations: ${whole.headline}`), ` ${whole.figures}`]));
}

// Without a lift there is no interval, hence no verdict, but the figures are there.
function describeUnjudged(run, party) {
  const one = party ?? run.parties[0], row = one.figures[0], metric = METRICS[row.metric];
  const figures = [["federated", row.federated], ["alone", row.alone], [row.metric === "rmse" ? "own means" : "popularity", row.simple]].filter(([, value]) => value !== null && value !== undefined);
  const best = figures.length ? figures.reduce((first, next) => ((next[1] < first[1]) === (metric.better === "lower") ? next : first)) : null;
  const ahead = best && best[0] !== "federated" ? ` ${best[0] === "alone" ? "The model trained alone is" : best[0] === "own means" ? "The own means are" : "The most popular items are"} ahead of the federation.` : "";
  const shown = figures.map(([name, value]) => `${name} ${value.toFixed(4)}`).join(", ");
  return `${metric.name} at ${one.name}, ${metric.better} is better: ${shown}.${ahead} For a verdict with intervals, run: verfedgnn train --resume RUN --lift`;
}

// Draw what the lift shows in words, then one table for each organisation.
function drawWorth(box, run, party) {
  const shown = party ? [party] : run.parties, points = (party ?? run).points, parts = [];
  if (points.length) parts.push(make("ul", { class: "points", id: "summary" }, ...points.map((text) => make("li", {}, text))));
  if (!party && run.lift !== null && shown.length > 1) parts.push(make("h4", {}, "All organisations together"), drawRows(run.lift, "all organisations together"));
  for (const one of shown) {
    if (shown.length > 1 || run.parties.length > 1) parts.push(make("h4", {}, one.name));
    parts.push(drawRows(one.lift ?? one.figures, one.name));
  }
  const notes = [
    "RMSE is the typical error of a predicted rating. NDCG@20 says how high the items that a user likes stand in a list. Both are measured on ratings used neither for training nor for model selection.",
    "Simple: means of the organisation's ratings, or its most popular items. Alone: the best it has without the others. Federated: what it serves; for new customers, what a second training without their ratings would serve.",
  ];
  if (run.judged_by_lift) notes.push("Pooled: the same model trained on all data in one place, unprotected. Gains are over simple or alone, the better of the two, with a 95 % interval. New customers have no ratings at the organisation and some at another one.");
  else notes.push("Train with --lift to learn for whom joining pays, with intervals and for customers who are new to an organisation.");
  if (!run.alone) notes.push("This run has no model trained alone. Train with the best preset or with --set gate=true to compare.");
  box.replaceChildren(...parts, ...notes.map((text) => make("p", { class: "quiet" }, text)));
}

// A table that scrolls on a narrow screen, also by keyboard, and keeps its first and last column in sight.
function scrolling(label, table) {
  return make("div", { class: "table", role: "region", "aria-label": label, tabindex: "0" }, table);
}

function drawRows(rows, whose) {
  const gains = rows.some((row) => "gain" in row), ways = WAYS.filter((way) => rows.some((row) => way in row));
  const titles = ["what", ...ways, ...(gains ? ["gain", "pays"] : [])];
  const head = make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)));
  const table = make("table", { class: gains ? "lift verdicts" : "lift" }, make("thead", {}, head), make("tbody", {}, ...rows.map((row) => drawRow(row, ways, gains))));
  return scrolling(`Figures of ${whose}`, table);
}

function drawRow(row, ways, gains) {
  const metric = METRICS[row.metric], known = row.customers !== "newcomers";
  const who = row.customers === undefined ? "" : known ? ", known customers" : ", new customers";
  const count = row.users === undefined ? "" : `, ${plural(row.users, "customer")}`;
  const cells = ways.map((way) => {
    const value = row[way];
    return make("td", { class: way }, value === null || value === undefined ? "–" : value.toFixed(4), way === "simple" ? make("small", {}, metric.simple) : null);
  });
  const head = make("th", { scope: "row" }, `${metric.what}${who}`, make("small", {}, `${metric.name}, ${metric.better} is better${count}`));
  return make("tr", {}, head, ...cells, ...(gains ? drawGain(row) : []));
}

function drawGain(row) {
  const tone = { yes: "good", no: "bad" }[row.pays] ?? "unclear";
  const interval = row.gain === null ? null : make("small", {}, `${signed(row.gain.low_percent, 1)} to ${signed(row.gain.high_percent, 1)}`);
  return [
    make("td", {}, row.gain === null ? "–" : `${signed(row.gain.percent, 1)} %`, interval),
    make("td", { class: tone }, row.gain === null ? "no test cases" : row.pays),
  ];
}
