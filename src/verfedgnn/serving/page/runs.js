// Several runs side by side: verdicts, figures, learning curves, and what changed for a user.
"use strict";

let beside = [];
const pathOf = (name) => `runs/${encodeURIComponent(name)}/`;

async function loadRuns() {
  beside = await Promise.all(state.run.others.map(async (name) => ({ ...(await ask(`${pathOf(name)}v1/run`)), name })));
  $("beside").hidden = beside.length === 0;
  $("other-run").replaceChildren(...beside.map((run) => make("option", { value: run.name }, run.name)));
  chooseRun(state.other);
  if (beside.length) drawRuns($("runs"));
  drawCurves($("curve"), [state.run, ...beside]);
}

function drawRuns(box) {
  const titles = ["run", "preset", "users", "RMSE", "NDCG@20", "rounds", "sent", "verdict"];
  const head = make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)));
  const digits = (value) => (value === null || value === undefined ? "–" : value.toFixed(4));
  const rows = [state.run, ...beside].map((run, index) => make("tr", {},
    make("th", { scope: "row" }, run.name, make("small", {}, index === 0 ? "shown on this page" : "compared")),
    ...[run.preset, run.users.toLocaleString("en"), digits(run.test?.rmse), digits(run.test?.["ndcg@20"]), run.rounds.toLocaleString("en"), run.bytes.up].map((text, place) => make("td", { "data-title": titles[place + 1] }, text)),
    make("td", { class: `wide first ${run.verdict?.tone ?? "unclear"}`, "data-title": "verdict" }, run.verdict?.headline ?? "Not judged.")));
  const table = make("table", { class: "lift" }, make("thead", {}, head), make("tbody", {}, ...rows));
  box.replaceChildren(scrolling("Figures of all runs", table), make("p", { class: "quiet" }, "RMSE: lower is better. NDCG@20: higher is better. Both on the test part of each run, over all organisations. The learning curves are drawn together below."));
}

// Select the run to compare with; the first one if there is none of this name.
function chooseRun(name) {
  state.other = beside.some((run) => run.name === name) ? name : null;
  if (beside.length) $("other-run").value = state.other ?? beside[0].name;
}

// Compare the user's list with that of another run.
async function showBetween() {
  $("between").hidden = beside.length === 0 || state.user === null;
  if ($("between").hidden) return;
  const turn = state.asked, { user, party } = state, name = $("other-run").value, now = state.lists.federated.all;
  const served = beside.find((run) => run.name === name).parties.some((other) => !party || other.name === party);
  const known = served && (await ask(`${pathOf(name)}v1/history`, { user, party, k: 1 })).known;
  const before = known ? (await ask(`${pathOf(name)}v1/recommendations`, { user, party, k: COMPARED, ...filterOf() })).recommendations : null;
  if (turn !== state.asked) return;
  if (before === null) {
    $("between-note").textContent = `${name} does not know this ${served ? "user" : "organisation"}.`;
    return $("moves").replaceChildren();
  }
  const shown = Math.min(SHOWN, now.length), came = drawChanges($("moves"), now, before, SHOWN);
  $("between-note").textContent = `${shown - came} of the ${plural(shown, "item")} are also among the first ${SHOWN} of ${name}.`;
}

$("other-run").addEventListener("change", () => {
  state.other = $("other-run").value;
  remember();
  guarded(showBetween);
});
