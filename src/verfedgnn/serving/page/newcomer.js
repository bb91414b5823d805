// The form for someone who is not in the run: pick items by title, give stars, get recommendations.
"use strict";

const given = new Map();

// Open the form, for someone new or for an id that the run does not know.
function openNewcomer() {
  $("newcomer").hidden = false;
  drawNewcomer();
  $("newcomer").scrollIntoView({ block: "start" });
}

function drawNewcomer() {
  const party = state.party || "any organisation";
  $("unknown").hidden = state.unknown === null;
  if (state.unknown !== null) {
    $("unknown").textContent = `User ${state.unknown} is not known here. ${plural(state.run.users, "user")} took part in the training. Check the spelling, or serve this person as someone new.`;
  }
  $("newcomer-note").textContent = `Pick a few items of ${party} by title or id and rate them. The recommendations follow from these ratings alone; nothing is stored. The gain for newcomers above is about other people: customers whom another organisation knows.`;
  drawGiven();
}

function closeNewcomer() {
  given.clear();
  $("newcomer").hidden = true;
}

// The ratings as text in the address, and back.
const writeGiven = () => JSON.stringify([...given.values()].map(({ item, rating }) => [item.party, item.item, rating]));

async function readGiven(text) {
  let ratings = [];
  try {
    ratings = JSON.parse(text).filter(([party, item, rating]) => partyOf(party) && typeof item === "string" && Number.isFinite(rating));
  } catch {
    return; // not one of our addresses
  }
  const lists = await Promise.all(ratings.map(([party, item]) => ask("v1/items", { text: item, party, k: 1000 })));
  ratings.forEach(([, id, rating], index) => {
    const item = lists[index].items.find((found) => found.item === id);
    if (item) given.set(keyOf(item), { item, rating });
  });
}

// A choice of ratings: every whole step of the scale, from the highest; a number field for long scales.
function ratingField(item, rating) {
  const [low, high] = partyOf(item.party).scale, label = `Rating of ${nameOf(item)}`;
  if (!state.run.predicts) return make("span", {}, "liked");
  if (high - low > 10 || !Number.isInteger(low) || !Number.isInteger(high)) {
    return make("input", { type: "number", min: low, max: high, step: "any", value: rating, "aria-label": label, required: "" });
  }
  const steps = Array.from({ length: high - low + 1 }, (_, index) => high - index);
  return make("select", { "aria-label": label }, ...steps.map((step) => make("option", { value: step, ...(step === rating ? { selected: "" } : {}) }, `${step} ★`)));
}

function drawGiven() {
  $("given").replaceChildren(...[...given.entries()].map(([key, { item, rating }]) => {
    const field = ratingField(item, rating), remove = make("button", { type: "button", "aria-label": `Remove ${nameOf(item)}` }, "Remove");
    field.addEventListener("change", () => {
      given.set(key, { item, rating: Number(field.value) });
      outdate();
    });
    remove.addEventListener("click", () => {
      given.delete(key);
      drawGiven();
      outdate();
      $("item").focus();
    });
    return make("li", {}, make("div", { class: "line" }, named(item), field, remove));
  }));
  $("ask-newcomer").disabled = given.size === 0;
  $("ask-hint").hidden = given.size > 0;
}

// The list in view no longer follows from the ratings in the form.
function outdate() {
  itemSearch.close();
  leaveUser();
  remember();
}

async function showNewcomer() {
  const turn = ++state.asked;
  say("Loading recommendations for someone new …");
  const ratings = [...given.values()].map(({ item, rating }) => ({ item: item.item, party: item.party, rating }));
  const body = { ratings, k: SHOWN, why: 4, ...(state.party ? { party: state.party } : {}), where: filterOf() };
  const found = await ask("v1/recommendations", {}, body);
  if (turn !== state.asked) return;
  state.count = ratings.length;
  state.elsewhere = 0;
  state.lists = { federated: { all: found.recommendations, best: found.recommendations, own: found.own_models ?? [] } };
  showBest();
  showChanged();
  $("for-user").hidden = false;
}

const itemSearch = suggest($("item"), $("items"), {
  find: async (text) => (await ask("v1/items", { text, party: state.party, k: 8 })).items.filter((item) => !given.has(keyOf(item))),
  show: (item) => [named(item)],
  choose: (item) => {
    given.set(keyOf(item), { item, rating: partyOf(item.party).scale[1] });
    $("item").value = "";
    drawGiven();
    outdate();
  },
  none: "No title or id contains this text.",
});
$("item").addEventListener("focus", () => itemSearch.open());
$("newcomer-form").addEventListener("submit", (event) => {
  event.preventDefault();
  guarded(showNewcomer);
});
$("open-newcomer").addEventListener("click", () => {
  leaveUser();
  state.unknown = null;
  $("user").value = "";
  openNewcomer();
  remember();
  $("item").focus({ preventScroll: true });
});
$("close-newcomer").addEventListener("click", () => {
  closeNewcomer();
  leaveUser();
  state.unknown = null;
  remember();
  $("user").focus();
});
