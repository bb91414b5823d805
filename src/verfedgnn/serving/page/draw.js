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
const WAYS = ["simple", "alone", "federated"];

function meter(share) {
  const bar = make("i");
  bar.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return make("div", { class: "meter", "aria-hidden": "true" }, bar);
}

// Draw the learning curves of the runs, one chart for ratings and one for lists.
function drawCurves(box, runs) {
  const charts = runs[0].curves.filter((curve) => curve.points.length > 1).flatMap((curve) => drawCurve(box.clientWidth, curve, runs));
  box.replaceChildren(...(charts.length ? charts : [make("p", { class: "quiet" }, "This run has no learning curve.")]));
}

// Draw one validation metric of the runs by round, and mark the round that the first run kept.
function drawCurve(space, own, runs) {
  const { what, name, better } = METRICS[own.metric], named = runs.map((run) => [run.name, run.curves.find((curve) => curve.metric === own.metric)]);
  const drawn = named.filter(([, curve]) => curve && curve.points.length > 1);
  const width = Math.max(260, space), height = 220, left = 46, right = 12, top = 14, bottom = 34;
  const points = drawn.flatMap(([, curve]) => curve.points), values = points.map((point) => point.value), rounds = points.map((point) => point.round);
  const low = Math.min(...values), high = Math.max(...values), first = Math.min(...rounds), last = Math.max(...rounds);
  const x = (round) => left + ((round - first) / (last - first || 1)) * (width - left - right);
  const y = (value) => top + ((high - value) / (high - low || 1)) * (height - top - bottom);
  const keptBy = (curve) => curve.points.reduce((best, point) => (Math.abs(point.round - curve.best_round) < Math.abs(best.round - curve.best_round) ? point : best));
  const kept = keptBy(own);
  const label = drawn.map(([run, curve]) => `${run}: ${name} on the validation part from ${curve.points[0].value.toFixed(4)} in round ${curve.points[0].round} to ${keptBy(curve).value.toFixed(4)} in round ${keptBy(curve).round}, which was kept`).join(". ");
  const svg = vector("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const share of [0, 0.5, 1]) {
    const value = low + share * (high - low);
    svg.append(vector("line", { class: "axis", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    svg.append(vector("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, value.toFixed(3)));
  }
  svg.append(vector("line", { class: "kept", x1: x(kept.round), x2: x(kept.round), y1: top, y2: height - bottom }));
  drawn.forEach(([, curve], index) => svg.append(vector("polyline", { class: `curve c${index % 4}`, points: curve.points.map((p) => `${x(p.round).toFixed(1)},${y(p.value).toFixed(1)}`).join(" ") })));
  svg.append(vector("circle", { class: "dot", cx: x(kept.round), cy: y(kept.value), r: 4 }));
  svg.append(vector("text", { x: left, y: height - 10 }, `round ${first}`));
  svg.append(vector("text", { x: width - right, y: height - 10, "text-anchor": "end" }, `${last}`));
  // The word stands where the curve is not: above for an error, which falls, and below for NDCG, which rises.
  const anchor = x(kept.round) + 120 > width ? "end" : "start", shift = anchor === "end" ? -8 : 8, level = better === "lower" ? top + 8 : height - bottom - 8;
  svg.append(vector("text", { x: x(kept.round) + shift, y: level, "text-anchor": anchor }, `kept: round ${kept.round}`));
  const note = `${name} on the validation part, ${better} is better. ${plural(own.rounds, "round")} in ${Math.round(own.seconds)} s.`;
  const legend = drawn.length > 1 ? make("p", { class: "legend" }, ...drawn.map(([run], index) => make("span", { class: `c${index % 4}` }, run))) : null;
  return [make("h4", {}, what), make("p", { class: "quiet" }, note), legend, svg].filter((part) => part !== null);
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
  $("provisional").textContent = shown?.provisional ?? "";
  $("provisional").hidden = !shown?.provisional;
  $("for-whom").replaceChildren(...(shown?.for_whom ?? []).map((text) => make("li", {}, text)));
  $("for-whom").hidden = !shown?.for_whom.length;
  $("overall").hidden = whole === null;
  $("overall").replaceChildren(...(whole === null ? [] : [make("b", { class: whole.tone }, `All organisations: ${whole.headline}`), ` ${whole.figures}`]));
}

// Without a lift there is no interval, hence no verdict, but the figures are there.
function describeUnjudged(run, party) {
  const shown = party ? [party] : run.parties, metric = METRICS[shown[0].figures[0].metric];
  const texts = shown.map((one) => `${metric.name} at ${one.name}, ${metric.better} is better: ${describeFigures(one.figures[0], metric)}`);
  return `${texts.join(" ")} For a verdict with intervals, run: verfedgnn train --resume RUN --lift`;
}

function describeFigures(row, metric) {
  const figures = [["federated", row.federated], ["alone", row.alone], [row.metric === "rmse" ? "own means" : "popularity", row.simple]].filter(([, value]) => value !== null && value !== undefined);
  const best = figures.length ? figures.reduce((first, next) => ((next[1] < first[1]) === (metric.better === "lower") ? next : first)) : null;
  const ahead = best && best[0] !== "federated" ? ` ${best[0] === "alone" ? "The model trained alone is" : best[0] === "own means" ? "The own means are" : "The most popular items are"} ahead of the federation.` : "";
  return `${figures.map(([name, value]) => `${name} ${value.toFixed(4)}`).join(", ")}.${ahead}`;
}

// Draw what the lift shows in words, then one table for each organisation.
function drawWorth(box, run, party) {
  const shown = party ? [party] : run.parties, points = (party ?? run).points, parts = [];
  if (points.length) parts.push(make("ul", { class: "points", id: "summary" }, ...points.map((text) => make("li", {}, text))));
  if (!party && run.lift !== null && shown.length > 1) parts.push(make("h4", {}, "All organisations together"), ...drawGains(run.lift), drawRows(run.lift, "all organisations together"));
  for (const one of shown) {
    if (shown.length > 1 || run.parties.length > 1) parts.push(make("h4", {}, one.name));
    parts.push(...(party && one.lift !== null ? drawGains(one.lift) : []), drawRows(one.lift ?? one.figures, one.name));
  }
  parts.push(...drawGroups((party ?? run).groups));
  const notes = [
    "RMSE is the typical error of a predicted rating. NDCG@20 says how high the items that a user likes stand in a list. Both are measured on ratings used neither for training nor for model selection.",
    "Simple: means of the organisation's ratings, or its most popular items. Alone: the best it has without the others. Federated: what it serves; for newcomers, what a second training without their ratings would serve.",
  ];
  if (run.judged_by_lift) notes.push("Gains are over simple or alone, the better of the two, with a 95 % interval. Newcomers have no ratings at the organisation and some at another one.", ...run.lift_notes);
  else notes.push("Train with --lift to learn for whom joining pays, with intervals and for customers who are new to an organisation.");
  if (!run.alone) notes.push("This run has no model trained alone. Train with the best preset or with --set gate=true to compare.");
  box.replaceChildren(...parts, ...notes.map((text) => make("p", { class: "quiet" }, text)));
}

// A table that scrolls where it does not fit, also by keyboard. On a phone each row becomes a block with the titles of the columns.
function scrolling(label, table) {
  return make("div", { class: "table", role: "region", "aria-label": label, tabindex: "0" }, table);
}

function drawRows(rows, whose) {
  const gains = rows.some((row) => "gain" in row), ways = WAYS.filter((way) => rows.some((row) => way in row));
  const titles = ["what", ...ways, ...(gains ? ["gain", "pays"] : [])];
  const head = make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)));
  const table = make("table", { class: "lift" }, make("thead", {}, head), make("tbody", {}, ...rows.map((row) => drawRow(row, ways, gains))));
  return scrolling(`Figures of ${whose}`, table);
}

function drawRow(row, ways, gains) {
  const metric = METRICS[row.metric], known = row.customers !== "newcomers";
  const who = row.customers === undefined ? "" : known ? ", known customers" : ", newcomers";
  const count = row.users === undefined ? "" : `, ${plural(row.users, "customer")}`;
  const cells = ways.map((way) => {
    const value = row[way];
    return make("td", { class: way, "data-title": way }, value === null || value === undefined ? "–" : value.toFixed(4), way === "simple" ? make("small", {}, metric.simple) : null);
  });
  const head = make("th", { scope: "row" }, `${metric.what}${who}`, make("small", {}, `${metric.name}, ${metric.better} is better${count}`));
  return make("tr", {}, head, ...cells, ...(gains ? drawGain(row) : []));
}

// The gain as the server words it, such as "+12.2 % (+11.2 to +13.3)", with its interval in a second line.
function drawGain(row) {
  const [gain, interval] = row.gain_text.split(" (");
  return [
    make("td", { class: "first", "data-title": "gain" }, gain, interval ? make("small", {}, interval.replace(")", "")) : null),
    make("td", { class: `first ${row.tone}`, "data-title": "pays" }, row.gain === null ? "no test cases" : row.pays),
  ];
}

// Two charts of the gains with their intervals, for known customers and for newcomers, around a line at 0.
function drawGains(rows) {
  const charts = ["known customers", "newcomers"].map((customers) => drawIntervals(customers, rows.filter((row) => row.gain !== null && row.gain_text !== "-" && row.customers === customers)));
  const drawn = charts.filter((chart) => chart !== null);
  return drawn.length ? [make("div", { class: "gains" }, ...drawn)] : [];
}

function drawIntervals(customers, rows) {
  if (!rows.length) return null;
  const width = 330, step = 40, height = 24 + step * rows.length, ends = [0, ...rows.flatMap((row) => row.gain)];
  const low = Math.min(...ends), high = Math.max(...ends), spare = 0.06 * (high - low) || 1;
  const x = (value) => ((value - low + spare) / (high - low + 2 * spare)) * width;
  const title = `Gain for ${customers}, in % with its 95 % interval`;
  const svg = vector("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}: ${rows.map((row) => `${METRICS[row.metric].what} ${row.gain_text}, ${row.pays}`).join("; ")}` });
  svg.append(vector("text", { x: x(0), y: height - 4, "text-anchor": "middle" }, "0"));
  rows.forEach((row, index) => {
    const y = step * index + 28, [first, middle, last] = row.gain.map(x), sure = ["good", "bad", "same"].includes(row.tone);
    svg.append(vector("line", { class: "zero", x1: x(0), x2: x(0), y1: y - 9, y2: y + 9 }), vector("text", { x: 0, y: y - 14 }, METRICS[row.metric].what), vector("text", { x: width, y: y - 14, "text-anchor": "end" }, `${row.gain_text}, ${row.pays}`));
    for (const [from, to] of sure ? [[first, last]] : [[first, Math.max(first, middle - 5)], [Math.min(last, middle + 5), last]]) svg.append(vector("line", { class: `gain ${row.tone}`, x1: from, x2: to, y1: y, y2: y }));
    svg.append(vector("circle", { class: `gain ${row.tone}${sure ? " sure" : ""}`, cx: middle, cy: y, r: 5 }));
  });
  return make("figure", {}, make("figcaption", { class: "quiet" }, title), svg);
}

// The tables of groups of customers, as the report shows them, behind a summary that opens them.
function drawGroups(groups) {
  if (!groups.length) return [];
  const tables = groups.flatMap((group) => {
    const head = make("tr", {}, ...group.columns.map((title) => make("th", { scope: "col" }, title)));
    const body = group.rows.map(([name, ...cells], row) => make("tr", {}, make("th", { scope: "row" }, name), ...cells.map((text, index) => {
      const title = group.columns[index + 1], last = index === cells.length - 1, [gain, interval] = text.split(" (");
      const shown = title === "gain" && interval ? [gain, make("small", {}, interval.replace(")", ""))] : [text];
      return make("td", { class: last ? `first ${group.tones[row]}` : title === "gain" ? "first" : title, "data-title": title }, ...shown);
    })));
    return [make("h4", {}, group.title), scrolling(group.title, make("table", { class: "lift groups" }, make("thead", {}, head), make("tbody", {}, ...body))), make("p", { class: "quiet" }, group.note)];
  });
  return [make("details", { class: "how" }, make("summary", {}, "Groups of customers: by activity and by overlap, known customers and newcomers"), ...tables)];
}
