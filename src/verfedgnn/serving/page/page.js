// The page: the verdict, then a user with what they liked, recommendations with reasons, and what the federation changed.
"use strict";

const SHOWN = 10, COMPARED = 200;

async function start() {
  state.run = await ask("v1/run");
  const run = state.run;
  document.title = `${run.name} · verfedgnn`;
  document.body.classList.remove("refused");
  $("run-name").textContent = run.name;
  const options = run.parties.map((party) => make("option", { value: party.name }, party.name));
  if (run.parties.length > 1) options.unshift(make("option", { value: "" }, "all organisations"));
  $("party").replaceChildren(...options);
  $("party").disabled = options.length < 2;
  $("party").title = options.length < 2 ? "This server serves one organisation." : "";
  $("model-alone").disabled = !run.alone;
  $("no-alone").textContent = "This run has no models of the organisations alone. To compare with them, train with the best preset or with --set gate=true.";
  $("key-form").hidden = true;
  $("api").hidden = sessionStorage.getItem(KEY) !== null; // a link cannot carry a key
  for (const part of document.querySelectorAll(".open")) part.hidden = false;
  $("warning").hidden = run.warning === null;
  $("warning").textContent = run.warning ?? "";
  $("how").replaceChildren(...explanation(run.ranks).map((text) => make("p", {}, text)));
  await follow();
}

const examplesOf = (name) => (partyOf(name) ?? state.run).examples;
const typicalOf = (name) => examplesOf(name).find((example) => example.label === "a typical user")?.user ?? null;
const filterOf = () => (state.where ? Object.fromEntries([JSON.parse(state.where)]) : {});
const partyOf = (name) => state.run.parties.find((party) => party.name === name) ?? null;

// Draw everything that depends on the organisation; `party` is null for all organisations together.
function drawParty() {
  const party = partyOf(state.party), columns = Object.entries(party?.columns ?? {});
  $("party").value = state.party;
  const choices = examplesOf(state.party).map((example) => {
    const button = make("button", { type: "button", "data-user": example.user }, make("b", {}, example.user), ` ${example.label.replace("ratings", `${noun()}s`)}`);
    button.addEventListener("click", () => chooseUser(example.user));
    return button;
  });
  $("examples").replaceChildren(...choices);
  $("filter-box").hidden = columns.length === 0;
  const groups = columns.map(([column, values]) => make("optgroup", { label: column }, ...values.map((value) => make("option", { value: JSON.stringify([column, value]) }, value))));
  $("filter").replaceChildren(make("option", { value: "" }, "all items"), ...groups);
  $("filter").value = state.where;
  drawVerdict(state.run, party);
}

function chooseParty(name) {
  state.party = name;
  state.where = "";
  if (state.opened) state.user = typicalOf(name);
  drawParty();
  remember();
  showChosen();
}

function chooseUser(user) {
  closeNewcomer();
  state.user = user;
  state.unknown = null;
  state.opened = false;
  $("user").value = user;
  userSearch.close();
  remember();
  showChosen();
}

// Show the user, or the newcomer, at the chosen organisation.
function showChosen() {
  if (state.user !== null) return guarded(showUser);
  leaveUser();
  if ($("newcomer").hidden) return;
  drawNewcomer();
  if (given.size) guarded(showNewcomer);
}

// Take away what is shown of a user.
function leaveUser() {
  state.asked++;
  state.user = null;
  state.opened = false;
  state.lists = {};
  $("for-user").hidden = true;
  say("");
}

// The part of the address after # says what is chosen, so that links and the back button work. Browsers do not send it to the server.
function addressOf() {
  const { party, model, where } = state;
  const chosen = { user: state.opened ? null : (state.user ?? state.unknown), party: party || null, model: model === "alone" ? model : null, where: where || null, new: $("newcomer").hidden ? null : writeGiven() };
  return `#${new URLSearchParams(Object.entries(chosen).filter(([, value]) => value !== null))}`;
}

function remember() {
  const address = addressOf();
  if (address !== location.hash) window.history.pushState(null, "", address);
}

// Show what the address names.
async function follow() {
  if (state.run === null) return; // the key comes first
  const link = new URLSearchParams(location.hash.slice(1)), user = link.get("user"), named = (id, value) => [...$(id).options].some((option) => option.value === value);
  state.party = named("party", link.get("party")) ? link.get("party") : $("party").options[0].value;
  state.model = link.get("model") === "alone" && state.run.alone ? "alone" : "federated";
  $(`model-${state.model}`).checked = true;
  state.where = "";
  drawParty();
  if (named("filter", link.get("where"))) $("filter").value = state.where = link.get("where");
  closeNewcomer();
  leaveUser();
  state.unknown = null;
  $("user").value = user ?? "";
  if (link.has("new")) {
    state.unknown = user;
    openNewcomer();
    await readGiven(link.get("new"));
  } else {
    state.opened = !user;
    state.user = user || typicalOf(state.party);
  }
  showChosen();
}

async function showUser() {
  const turn = ++state.asked, { user, party, run } = state, filter = filterOf();
  say(`Loading recommendations for user ${user} …`);
  const models = run.alone ? ["federated", "alone"] : ["federated"];
  const history = await ask("v1/history", { user, party, k: SHOWN });
  if (turn !== state.asked) return; // another user was chosen in the meantime
  if (!history.known) {
    leaveUser();
    state.unknown = user;
    openNewcomer();
    return say(`No recommendations: user ${user} is not known.`);
  }
  const wanted = [];
  for (const model of models) {
    wanted.push(ask("v1/recommendations", { user, party, model, k: COMPARED, ...filter }));
    wanted.push(ask("v1/recommendations", { user, party, model, k: SHOWN, why: 4, ...filter }));
  }
  const found = await Promise.all(wanted);
  if (turn !== state.asked) return;
  state.lists = {};
  state.count = history.count;
  state.elsewhere = history.elsewhere;
  models.forEach((model, i) => (state.lists[model] = { all: found[2 * i].recommendations, best: found[2 * i + 1].recommendations, own: found[2 * i + 1].own_models ?? [] }));
  showLiked(history);
  showBest();
  showChanged();
  $("for-user").hidden = false;
}

const whoIs = () => (state.user === null ? "someone new" : `user ${state.user}`);

function showLiked(history) {
  const liked = history.items.filter((item) => item.rating >= partyOf(item.party).liked_from);
  $("liked").replaceChildren(...liked.map((item) => make("li", {}, make("div", { class: "line" }, named(item), stars(item.rating)))));
  $("liked-title").textContent = `Liked by user ${state.user}`;
  $("liked-note").textContent = describeLiked(history, liked.length);
}

function describeLiked(history, shown) {
  const where = state.party || "all organisations", from = [...new Set((state.party ? [partyOf(state.party)] : state.run.parties).map((party) => round(party.liked_from)))];
  const bar = from.length === 1 ? `${from[0]} ★ or more` : "the upper quarter of the scale";
  if (history.count === 0) return `No ${noun()}s at ${where} yet.`;
  const first = shown < history.liked ? `The highest ${shown} of them.` : "";
  if (!state.run.predicts) return `Bought or liked: ${plural(history.liked, "item")} at ${where}. ${shown < history.liked ? `${shown} of them.` : ""}`.trim();
  return `${history.liked.toLocaleString("en")} of ${plural(history.count, "rating")} at ${where} ${history.liked === 1 ? "is" : "are"} ${bar}. ${first}`.trim();
}

function placeIn(model, item) {
  return state.lists[model]?.all.findIndex((other) => keyOf(other) === keyOf(item)) + 1;
}

const placed = (place) => (place > 0 ? `rank ${place}` : `below rank ${COMPARED}`);

function showBest() {
  const model = state.lists[state.model] ? state.model : "federated", other = model === "alone" ? "federated" : "alone";
  const { best, own } = state.lists[model], party = partyOf(state.party);
  const { above, lines } = reasonsFor(best);
  const entries = best.map((item, index) => {
    const line = make("div", { class: "line" }, make("span", { class: "place" }, `${index + 1}`), named(item, moved(item, index + 1, other)),
      item.rating === null ? null : stars(item.rating));
    const [low, high] = partyOf(item.party).scale, share = state.run.ranks ? item.score / best[0].score : (item.rating - low) / (high - low || 1);
    return make("li", {}, line, meter(share), lines[index]);
  });
  $("best").className = `plain ${model}`;
  $("best").replaceChildren(...entries);
  $("switch").hidden = $("liked-box").hidden = state.user === null;
  $("no-alone").hidden = state.user === null || state.run.alone;
  $("best-title").textContent = `Recommendations for ${whoIs()}`;
  $("personal").hidden = best.length === 0;
  $("personal").replaceChildren(describePersonal(model, best), ...above);
  const together = own.length < (party ? 1 : state.run.parties.length) ? "Trained by all organisations together. " : "";
  const apart = own.length ? `At ${own.join(" and at ")} its own model is served, since the federated one was not better on its validation part.` : "";
  const trained = model === "alone" ? `Trained by ${party ? party.name : "each organisation"} alone.` : `${together}${apart}`.trim();
  $("best-note").textContent = best.length === 0 ? "No items match this filter." : `${trained} ${ordering(state.run, party)} Items the user ${state.run.predicts ? "has rated" : "bought or liked"} are left out.${withoutTitles(party)}`;
  say(`${plural(best.length, "recommendation")} for ${whoIs()}, ${model}.`);
}

// Say once whether a list is personal. Someone new to the organisation is compared with what it would show alone, if the run has
// that; others with what a new customer sees.
function describePersonal(model, best) {
  const where = state.party || "any organisation", who = whoIs(), shown = plural(best.length, "item"), is = (count) => (count === 1 ? "is" : "are");
  const unusual = best.filter((item) => isPersonal(item.why)).length, usual = `every new customer would see the same items${model === "alone" || state.lists[model].own.length ? "" : ", perhaps in another order"}`;
  const list = `the first ${SHOWN} of ${state.party ? "a" : "any organisation's"} list for a new customer`;
  if (state.count > 0 && unusual > 0 && 3 * unusual < best.length) return `Hardly personal: ${best.length - unusual} of these ${shown} are among ${list}. More ${noun()}s make it more personal.`;
  if (state.count > 0) return unusual ? `Personal: ${unusual} of these ${shown} ${is(unusual)} not among ${list}.` : `Not personal: ${usual}.`;
  if (model === "alone" || state.lists[model].own.includes(state.party)) return `Not personal: the model of ${where} alone knows nothing about ${who}, so ${usual}.`;
  const others = state.elsewhere > 1 ? `to ${state.elsewhere} other organisations` : state.elsewhere === 1 ? "to another organisation" : "elsewhere";
  const newHere = `${who[0].toUpperCase()}${who.slice(1)} is new to ${where} and known ${others}`;
  const alone = state.lists.alone && new Set(state.lists.alone.best.map(keyOf)), came = alone ? best.filter((item) => !alone.has(keyOf(item))).length : unusual;
  const unlike = alone ? `would not be in the list if ${where} had trained alone` : `${is(came)} not what every new customer would see`;
  return came ? `Personal: ${newHere}. What training learnt there orders this list: ${came} of these ${shown} ${unlike}. Which items the user rated there is not visible here.` : `Not personal: ${newHere}, but what training learnt there changes little: ${alone ? `${where} alone would show the same items, perhaps in another order` : usual}.`;
}

function withoutTitles(party) {
  const without = (party ? [party] : state.run.parties).filter((one) => !one.titles);
  return without.length ? " The data has no titles, so items are shown by their ids." : "";
}

function ordering(run, party) {
  const merged = party || run.parties.length === 1 ? "" : " The lists of the organisations are merged here; in a federation nobody has all of them.";
  if (!run.ranks) return `Ordered by predicted rating.${merged}`;
  const order = `Ordered by the score, which the bars show; it says nothing about how sure a like is.${merged}`;
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

function explanation(ranks) {
  const parts = ranks ? "four parts: the score for the average user, what the user's ratings add to every item, one contribution per rating to this item, and one for each item that users often have together with it" : "three parts: the prediction for the average user, how high this user rates in general, and one contribution per rating";
  return [
    `A reason is an item that the user liked. At most two are named for each recommendation, those that contribute most. Other ratings count in the score, too, but are not named.`,
    "A reason that most items share is named once, above the list. A reason is given only where the user's ratings moved the item up, compared with the list for the average customer. If customers with a similar taste like an item, a line says so.",
    `Reasons are computed by folding in: a fit estimates the user's taste from their own ratings alone. The ${ranks ? "score" : "prediction"} is then a sum of ${parts}.`,
    "The trained model also uses the ratings of all other users and, in a federation, of other organisations. The reasons therefore explain most of a recommendation, but not all of it. The API returns all parts.",
  ];
}

function showChanged() {
  $("changed").hidden = !state.lists.alone;
  if (!state.lists.alone) return;
  const { federated, alone } = state.lists, came = drawChanges($("changes"), federated.all, alone.all, SHOWN);
  const others = state.party || "each organisation";
  $("changed-note").textContent = came === 0 ? `All ${plural(federated.best.length, "item")} recommended to user ${state.user} would also be in the list if ${others} had trained alone.` : `${came} of the ${plural(federated.best.length, "item")} recommended to user ${state.user} would not be in the list if ${others} had trained alone.`;
}

const userSearch = suggest($("user"), $("users"), {
  find: async (starts) => (await ask("v1/users", { starts, party: state.party, k: 8 })).users,
  show: (user) => [make("span", {}, user.user), make("small", {}, plural(user.ratings, noun()))],
  choose: (user) => chooseUser(user.user),
  typed: chooseUser,
  none: "No user id starts with this text.",
});
$("party").addEventListener("change", () => chooseParty($("party").value));
$("filter").addEventListener("change", () => {
  state.where = $("filter").value;
  remember();
  showChosen();
});
$("switch").addEventListener("change", (event) => {
  state.model = event.target.value;
  remember();
  if (state.lists.federated) showBest();
});
for (const link of document.querySelectorAll("a[href^='#']")) link.addEventListener("click", (event) => {
  event.preventDefault(); // the part of the address after # says what is chosen
  const target = document.querySelector(link.getAttribute("href"));
  target.scrollIntoView();
  target.focus({ preventScroll: true });
});
window.addEventListener("hashchange", () => guarded(follow));
guarded(start);
