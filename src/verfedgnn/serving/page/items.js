// Items in lists: title, kind, stars, and the reasons for a recommendation.
"use strict";

const nameOf = (item) => item.title || `Item ${item.item}`;
const keyOf = (item) => `${item.party}\n${item.item}`;
const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const round = (value) => (Number.isInteger(value) ? `${value}` : value.toFixed(1));

function kindOf(item) {
  const kinds = Object.entries(item.columns).filter(([, value]) => value && value !== item.party);
  return [...(item.party === state.party ? [] : [item.party]), ...kinds.map(([, value]) => value)].join(" · ");
}

// What a customer has: ratings, or items that were bought or liked, which have no stars.
const noun = () => (state.run.predicts ? "rating" : "item");

function stars(value) {
  return state.run.predicts ? make("span", { class: "stars" }, round(value)) : null;
}

// The title of an item with its kind; an item without a title shows its id.
function named(item, ...more) {
  const kind = kindOf(item);
  return make("span", { class: "what" }, make("span", { class: item.title ? "title" : "title id" }, nameOf(item)), kind ? make("span", { class: "kind" }, kind) : null, ...more);
}

// The reasons for a list. Items that the user liked and that most of the list follows from are named once, `above` it. `lines` has what
// else is to be said about each item, or null: at most two liked items, or that customers with a similar taste like it.
function reasonsFor(best) {
  const found = best.map((item) => [...new Set(item.why.because.map(nameOf))].slice(0, 2)), counts = new Map();
  for (const name of found.flat()) counts.set(name, (counts.get(name) ?? 0) + 1);
  const common = [...counts].filter(([, count]) => best.length > 2 && 2 * count > best.length).sort((a, b) => b[1] - a[1]).map(([name]) => name).slice(0, 2);
  const follow = (names) => names.some((name) => common.includes(name));
  const listed = (names) => names.flatMap((name, index) => [index ? " and " : "", make("b", {}, name)]);
  const taste = best.map((item) => item.why.kind === "similar"), alike = taste.every((is) => is);
  const lines = found.map((names, index) => {
    const own = names.filter((name) => !common.includes(name));
    if (own.length) return make("p", { class: "why" }, `${follow(names) ? "Also because" : "Because"} this user liked `, ...listed(own), ".");
    return taste[index] && !alike ? make("p", { class: "why" }, "Liked by customers with a similar taste.") : null;
  });
  const most = found.every(follow) ? "All" : "Most";
  return { above: common.length ? [` ${most} of these items follow from `, ...listed(common), ", which this user liked."] : [], lines };
}

// Whether a new customer would not see the item in a list of this length.
const isPersonal = (why) => why.average_rank > SHOWN;

// Fill a box with lists: items that are new, that moved up or down, and that are gone. Lists hold the best items, `all` more of them.
function drawChanges(box, now, before, shown) {
  const keys = (items) => new Set(items.map(keyOf)), best = now.slice(0, shown), old = before.slice(0, shown), here = keys(best), there = keys(old);
  const place = (items, item) => items.findIndex((other) => keyOf(other) === keyOf(item)) + 1;
  const rank = (found, items) => (found > 0 ? `rank ${found}` : `below rank ${items.length}`);
  const entry = (item, note) => make("li", {}, make("span", { class: "title" }, nameOf(item)), make("span", { class: "kind" }, note));
  const column = (title, id, entries) => (entries.length ? make("div", {}, make("h3", {}, title), make("ul", { class: "plain", id }, ...entries)) : null);
  const came = best.filter((item) => !there.has(keyOf(item)));
  const moves = best.filter((item) => there.has(keyOf(item))).map((item) => [item, place(old, item) - place(best, item)]);
  const rose = moves.filter(([, by]) => by > 0), fell = moves.filter(([, by]) => by < 0);
  const left = old.filter((item) => !here.has(keyOf(item)));
  const columns = [
    column("New in the list", `${box.id}-came`, came.map((item) => entry(item, `from ${rank(place(before, item), before)}`))),
    column("Moved up", `${box.id}-rose`, rose.map(([item, by]) => entry(item, `by ${plural(by, "place")}`))),
    column("Moved down", `${box.id}-fell`, fell.map(([item, by]) => entry(item, `by ${plural(-by, "place")}`))),
    column("No longer in the list", `${box.id}-left`, left.map((item) => entry(item, `to ${rank(place(now, item), now)}`))),
  ];
  box.replaceChildren(...columns.filter((each) => each !== null));
  return came.length;
}
