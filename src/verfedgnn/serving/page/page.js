// The page: choose a user, see their highest ratings, the recommendations with reasons, and what the federation changed.
"use strict";

const SHOWN = 10, COMPARED = 200, KEY = "verfedgnn-key";
const state = { run: null, party: null, user: null, model: "federated", where: "", asked: 0, lists: {} };
const $ = (id) => document.getElementById(id);

class NeedsKey extends Error {}

async function ask(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== null && value !== ""));
  const key = sessionStorage.getItem(KEY), headers = key ? { Authorization: `Bearer ${key}` } : {};
  const answer = await fetch(`${path}?${query}`, { headers });
  if (answer.status === 401) throw new NeedsKey();
  const body = await answer.json();
  if (!answer.ok) throw new Error(`${body.error.cause}: ${body.error.remedy}`);
  return body;
}

async function guarded(work) {
  try {
    await work();
  } catch (error) {
    if (error instanceof NeedsKey) return askForKey();
    $("status").textContent = error instanceof TypeError ? "The server does not respond. Is it still running?" : error.message;
  }
}

function askForKey() {
  const tried = sessionStorage.getItem(KEY) !== null;
  sessionStorage.removeItem(KEY);
  for (const id of ["pick", "warning", "for-user", "about"]) $(id).hidden = true;
  $("key-form").hidden = false;
  $("key-error").textContent = tried ? "This API key is wrong." : "";
  $("key").focus();
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("key").value.trim());
  $("key").value = "";
  guarded(start);
});

async function start() {
  state.run = await ask("v1/run");
  const run = state.run;
  document.title = `${run.name} · verfedgnn`;
  $("run-name").textContent = run.name;
  const options = run.parties.map((party) => make("option", { value: party.name }, party.name));
  if (run.parties.length > 1) options.push(make("option", { value: "" }, "all organisations"));
  $("party").replaceChildren(...options);
  $("party").disabled = options.length < 2;
  $("model-alone").disabled = !run.alone;
  $("no-alone").hidden = run.alone;
  $("no-alone").textContent = "This run has no models of the organisations alone. To compare with them, train with the best preset or with --set gate=true.";
  $("key-form").hidden = true;
  $("api").hidden = sessionStorage.getItem(KEY) !== null; // a link cannot carry a key
  for (const id of ["pick", "about"]) $(id).hidden = false;
  $("warning").hidden = run.warning === null;
  $("warning").textContent = run.warning ?? "";
  $("how").replaceChildren(...explanation(run.ranks).map((text) => make("p", {}, text)));
  drawBytes($("bytes"), run);
  drawPrivacy($("privacy"), run);
  new ResizeObserver(() => drawCurve($("curve"), run)).observe($("curve"));
  chooseParty(run.parties[0].name);
  follow();
}

const partyOf = (name) => state.run.parties.find((party) => party.name === name) ?? null;

function chooseParty(name) {
  state.party = name;
  state.where = "";
  $("party").value = name;
  const party = partyOf(name), columns = Object.entries(party?.columns ?? {});
  const choices = (party ?? state.run.parties[0]).examples.map((example) => {
    const button = make("button", { type: "button", "data-user": example.user }, make("b", {}, example.user), ` ${example.label}`);
    button.addEventListener("click", () => chooseUser(example.user));
    return button;
  });
  $("examples").replaceChildren(...choices);
  $("filter-box").hidden = columns.length === 0;
  const groups = columns.map(([column, values]) => make("optgroup", { label: column }, ...values.map((value) => make("option", { value: JSON.stringify([column, value]) }, value))));
  $("filter").replaceChildren(make("option", { value: "" }, "all items"), ...groups);
  drawWorth($("worth"), state.run, party);
  if (state.user !== null) guarded(showUser);
}

function chooseUser(user) {
  state.user = user;
  $("user").value = user;
  closeUsers();
  guarded(showUser);
}

async function showUser() {
  const turn = ++state.asked, { user, party, run } = state;
  const filter = state.where ? Object.fromEntries([JSON.parse(state.where)]) : {};
  $("status").textContent = `Loading recommendations for user ${user} …`;
  const models = run.alone ? ["federated", "alone"] : ["federated"];
  const wanted = [ask("v1/history", { user, party, k: SHOWN })];
  for (const model of models) {
    wanted.push(ask("v1/recommendations", { user, party, model, k: COMPARED, ...filter }));
    wanted.push(ask("v1/recommendations", { user, party, model, k: SHOWN, why: 3, ...filter }));
  }
  const [history, ...found] = await Promise.all(wanted);
  if (turn !== state.asked) return; // another user was chosen in the meantime
  state.lists = {};
  models.forEach((model, i) => (state.lists[model] = { all: found[2 * i].recommendations, best: found[2 * i + 1].recommendations }));
  showLiked(history);
  showBest();
  showChanged();
  $("for-user").hidden = false;
  window.history.replaceState(null, "", `#${new URLSearchParams({ user, party })}`); // a link to this view; browsers do not send it to the server
}

// Show the user and organisation that a link names.
function follow() {
  if (state.run === null) return; // the key comes first
  const link = new URLSearchParams(location.hash.slice(1)), party = link.get("party"), user = link.get("user");
  if ([...$("party").options].some((option) => option.value === party)) chooseParty(party);
  if (user) chooseUser(user);
}

const nameOf = (item) => item.title || item.item;
const keyOf = (item) => `${item.party}\n${item.item}`;

function kindOf(item) {
  const kinds = Object.values(item.columns).filter((value) => value && value !== item.party);
  return [...(state.party ? [] : [item.party]), ...kinds].join(" · ");
}

const percent = (share) => `${(share * 100).toFixed(2)} %`;

function stars(value, share = false) {
  const text = share ? percent(value) : Number.isInteger(value) ? `${value}` : value.toFixed(1);
  return make("span", { class: share ? "stars share" : "stars" }, text);
}

function showLiked(history) {
  $("liked").replaceChildren(...history.items.map((item) => make("li", {}, make("div", { class: "line" },
    make("span", { class: "what" }, make("span", { class: "title" }, nameOf(item)), make("span", { class: "kind" }, kindOf(item))), stars(item.rating)))));
  const where = state.party || "all organisations", count = history.count.toLocaleString("en");
  $("liked-title").textContent = `Highest ratings of user ${state.user}`;
  $("liked-note").textContent = history.count === 0 ? `No ratings at ${where} yet.` : `From ${count} rating${history.count === 1 ? "" : "s"} at ${where}.`;
}

function placeIn(model, item) {
  return state.lists[model]?.all.findIndex((other) => keyOf(other) === keyOf(item)) + 1;
}

const placed = (place) => (place > 0 ? `rank ${place}` : `below rank ${COMPARED}`);

function showBest() {
  const model = state.lists[state.model] ? state.model : "federated", other = model === "alone" ? "federated" : "alone";
  const { best } = state.lists[model], party = partyOf(state.party);
  const entries = best.map((item, index) => {
    const line = make("div", { class: "line" }, make("span", { class: "place" }, `${index + 1}`),
      make("span", { class: "what" }, make("span", { class: "title" }, nameOf(item)), make("span", { class: "kind" }, kindOf(item)), moved(item, index + 1, other)),
      state.run.ranks && item.rating !== null ? make("span", { class: "small-share" }, percent(item.score)) : null,
      item.rating === null ? stars(item.score, true) : stars(item.rating));
    const [low, high] = partyOf(item.party).scale, share = state.run.ranks ? item.score / best[0].score : (item.rating - low) / (high - low || 1);
    return make("li", {}, line, meter(share), because(item.why));
  });
  $("best").className = `plain ${model}`;
  $("best").replaceChildren(...entries);
  $("best-title").textContent = `Recommendations for user ${state.user}`;
  const trained = model === "alone" ? `Trained by ${party ? party.name : "each organisation"} alone.` : "Trained by all organisations together.";
  $("best-note").textContent = best.length === 0 ? "No items match this filter." : `${trained} ${ordering(state.run)} Items the user has rated are left out.`;
  $("status").textContent = `${best.length} recommendations for user ${state.user}, ${model}.`;
}

function ordering(run) {
  if (!run.ranks) return "Ordered by predicted rating.";
  const order = "Ordered by how likely the user is to choose an item, as a share of the catalogue.";
  return run.predicts ? `${order} Stars are predicted ratings.` : order;
}

function moved(item, place, other) {
  if (!state.lists[other]) return null;
  const there = placeIn(other, item);
  if (there === place) return null;
  const up = there === 0 || there > place, arrow = up ? "▲" : "▼";
  const text = there > 0 && there <= SHOWN ? `${arrow} ${Math.abs(there - place)}` : `${arrow} ${other}: ${placed(there)}`;
  return make("span", { class: `tag ${up ? "up" : "down"}`, title: `${other}: ${placed(there)}` }, text);
}

function because(why) {
  const line = make("p", { class: "why" }), { ranks } = state.run, reasons = why.because.filter((reason) => reason.adds >= (ranks ? 0.02 : 0.005));
  if (reasons.length === 0) {
    line.append("Popular with many users; none of this user's own ratings adds much.");
    return line;
  }
  line.append("because this user rated ");
  reasons.forEach((reason, index) => {
    const [low, high] = partyOf(reason.party).scale, only = !ranks && reason.rating <= (low + high) / 2 ? "only " : "";
    const joint = index === 0 ? "" : index === reasons.length - 1 ? " and " : ", ";
    line.append(joint, make("b", {}, nameOf(reason)), ` ${only}${reason.rating} ★ (${signed(reason.adds)})`);
  });
  return line;
}

function explanation(ranks) {
  const unit = ranks ? "what it adds to the item's score before scores become shares" : "the number of stars it adds to the prediction";
  const parts = ranks ? "four parts: the score for the average user, what the user's ratings add to every item, one contribution per rating to this item, and one for each item that users often have together with it" : "three parts: the prediction for the average user, how high this user rates in general, and one contribution per rating";
  const low = ranks ? "An item that the user rated low counts as chosen, but not as liked." : "A low rating counts in favour of items that differ from the rated one.";
  return [
    `A reason is one of the user's own ratings, with ${unit}. ${low}`,
    `Reasons are computed by folding in: a fit estimates the user's taste from their own ratings alone. The ${ranks ? "score" : "prediction"} is then a sum of ${parts}. The largest contributions are shown.`,
    "The trained model also uses the ratings of all other users and, in a federation, of other organisations. The reasons therefore explain most of a recommendation, but not all of it. The API also returns the rest.",
  ];
}

function showChanged() {
  $("changed").hidden = !state.lists.alone;
  if (!state.lists.alone) return;
  const now = state.lists.federated.best, before = state.lists.alone.best;
  const keys = (items) => new Set(items.map(keyOf)), here = keys(now), there = keys(before);
  const entry = (item, note) => make("li", {}, make("span", { class: "title" }, nameOf(item)), make("span", { class: "kind" }, note));
  const fill = (id, entries) => $(id).replaceChildren(...(entries.length ? entries : [make("li", { class: "quiet" }, "none")]));
  const came = now.filter((item) => !there.has(keyOf(item)));
  fill("came", came.map((item) => entry(item, `from ${placed(placeIn("alone", item))}`)));
  const rose = now.map((item, index) => [item, placeIn("alone", item) - index - 1]).filter(([item, by]) => there.has(keyOf(item)) && by > 0);
  fill("rose", rose.map(([item, by]) => entry(item, `by ${by}`)));
  fill("left", before.filter((item) => !here.has(keyOf(item))).map((item) => entry(item, `to ${placed(placeIn("federated", item))}`)));
  $("changed-note").textContent = `${came.length} of the ${now.length} items recommended to user ${state.user} would not be in the list if ${state.party || "each organisation"} had trained alone.`;
}

// Suggestions: arrow keys move, Enter selects, Escape closes.
let suggested = [], active = -1, typed = 0;

function closeUsers() {
  $("users").hidden = true;
  $("user").setAttribute("aria-expanded", "false");
  $("user").removeAttribute("aria-activedescendant");
  active = -1;
}

function mark(place) {
  active = place;
  [...$("users").children].forEach((option, index) => option.setAttribute("aria-selected", String(index === place)));
  $("users").children[place].scrollIntoView({ block: "nearest" });
  $("user").setAttribute("aria-activedescendant", `user-${place}`);
}

async function suggest() {
  const turn = ++typed, found = await ask("v1/users", { starts: $("user").value.trim(), party: state.party, k: 8 });
  if (turn !== typed || document.activeElement !== $("user")) return;
  suggested = found.users.map((user) => user.user);
  $("users").replaceChildren(...found.users.map((user, index) => {
    const option = make("li", { role: "option", id: `user-${index}`, "aria-selected": "false" }, make("span", {}, user.user), make("small", {}, `${user.ratings} ratings`));
    option.addEventListener("mousedown", (event) => event.preventDefault());
    option.addEventListener("click", () => chooseUser(user.user));
    return option;
  }));
  active = -1;
  $("users").hidden = suggested.length === 0;
  $("user").setAttribute("aria-expanded", String(suggested.length > 0));
  if (suggested.length === 0) $("status").textContent = "No user id starts with this text.";
}

$("user").addEventListener("input", () => guarded(suggest));
$("user").addEventListener("blur", closeUsers);
$("user").addEventListener("keydown", (event) => {
  const open = !$("users").hidden;
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    if (!open) return guarded(suggest);
    mark((active + (event.key === "ArrowDown" ? 1 : active < 0 ? 0 : -1) + suggested.length) % suggested.length);
  } else if (event.key === "Enter") {
    event.preventDefault();
    const wanted = open && active >= 0 ? suggested[active] : $("user").value.trim();
    typed++;
    if (wanted) chooseUser(wanted);
  } else if (event.key === "Escape") closeUsers();
});
$("party").addEventListener("change", () => chooseParty($("party").value));
$("filter").addEventListener("change", () => { state.where = $("filter").value; if (state.user !== null) guarded(showUser); });
$("switch").addEventListener("change", (event) => { state.model = event.target.value; if (state.lists.federated) showBest(); });
window.addEventListener("hashchange", follow);
guarded(start);
