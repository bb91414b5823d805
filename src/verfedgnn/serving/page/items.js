// Items in lists: title, kind, picture, stars, and the reasons for a recommendation.
"use strict";

const nameOf = (item) => item.title || `Item ${item.item}`;
const keyOf = (item) => `${item.party}\n${item.item}`;
const percent = (share) => `${(share * 100).toFixed(2)} %`;
const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
const round = (value) => (Number.isInteger(value) ? `${value}` : value.toFixed(1));

function kindOf(item) {
  const kinds = Object.entries(item.columns).filter(([name, value]) => name !== "image" && value && value !== item.party);
  return [...(state.party ? [] : [item.party]), ...kinds.map(([, value]) => value)].join(" · ");
}

function stars(value, share = false) {
  return make("span", { class: share ? "stars share" : "stars" }, share ? percent(value) : round(value));
}

// The title of an item with its kind; an item without a title shows its id.
function named(item, ...more) {
  const kind = kindOf(item);
  return make("span", { class: "what" }, make("span", { class: item.title ? "title" : "title id" }, nameOf(item)), kind ? make("span", { class: "kind" }, kind) : null, ...more);
}

// The picture of an item, or a tile with its first letter; nothing if no item of the organisation has a picture.
function picture(item) {
  if (!partyOf(item.party)?.images) return null;
  const letter = (item.title || item.item).replace(/[^\p{L}\p{N}]/gu, "").charAt(0).toUpperCase() || "•";
  const box = make("span", { class: "picture", "aria-hidden": "true" }, letter);
  const source = item.columns.image ?? "", { hosts, folder } = state.run.pictures;
  if (source.includes("://")) {
    if (hosts.some((host) => source.startsWith(`${host}/`))) fill(box, source);
  } else if (source && folder) load(item).then((address) => address && fill(box, address));
  return box;
}

function fill(box, source) {
  const image = make("img", { alt: "", width: 44, height: 44 });
  image.addEventListener("load", () => box.replaceChildren(image));
  image.src = source;
}

// Pictures need the key, which an <img> cannot send, so they are fetched.
const loaded = new Map();
function load(item) {
  const key = keyOf(item);
  if (!loaded.has(key)) loaded.set(key, fetchPicture(item).catch(() => null));
  return loaded.get(key);
}

async function fetchPicture(item) {
  const answer = await send("v1/image", { item: item.item, party: item.party });
  return answer.ok ? URL.createObjectURL(await answer.blob()) : null;
}

// One sentence with at most two of the user's own ratings: what they liked, then what they chose or rated otherwise.
function because(why) {
  const line = make("p", { class: "why" }), seen = new Set();
  const strong = why.because.filter((reason) => {
    const fresh = !seen.has(nameOf(reason));
    seen.add(nameOf(reason));
    return fresh && reason.adds >= (state.run.ranks ? 0.02 : 0.05);
  }).slice(0, 2);
  if (strong.length === 0) {
    line.append("Popular with many users.");
    return line;
  }
  const liked = strong.filter((reason) => reason.rating >= partyOf(reason.party).liked_from), rest = strong.filter((reason) => !liked.includes(reason));
  // A model of lists counts an item that was not liked as chosen; a model of ratings learns from how low it was rated.
  const rated = (reason) => (state.run.ranks ? [] : [` ${round(reason.rating)} ★`]);
  const list = (verb, reasons, more) => [`${verb} `, ...reasons.flatMap((reason, index) => [index ? " and " : "", make("b", {}, nameOf(reason)), ...more(reason)])];
  const parts = [];
  if (liked.length) parts.push(list("liked", liked, () => []));
  if (rest.length) parts.push(list(state.run.ranks ? "chose" : "rated", rest, rated));
  line.append("Because this user ", ...parts.flatMap((part, index) => (index ? [" and ", ...part] : part)), ".");
  return line;
}

// Fill a box with three lists: items that are new, that moved up, and that are gone. Lists hold the best items, `all` more of them.
function drawChanges(box, now, before, shown) {
  const keys = (items) => new Set(items.map(keyOf)), best = now.slice(0, shown), old = before.slice(0, shown), here = keys(best), there = keys(old);
  const place = (items, item) => items.findIndex((other) => keyOf(other) === keyOf(item)) + 1;
  const rank = (found, items) => (found > 0 ? `rank ${found}` : `below rank ${items.length}`);
  const entry = (item, note) => make("li", {}, make("span", { class: "title" }, nameOf(item)), make("span", { class: "kind" }, note));
  const column = (title, id, entries) => make("div", {}, make("h3", {}, title), make("ul", { class: "plain", id }, ...(entries.length ? entries : [make("li", { class: "quiet" }, "None")])));
  const came = best.filter((item) => !there.has(keyOf(item)));
  const rose = best.map((item, index) => [item, place(old, item) - index - 1]).filter(([item, by]) => there.has(keyOf(item)) && by > 0);
  const left = old.filter((item) => !here.has(keyOf(item)));
  box.replaceChildren(
    column("New in the list", `${box.id}-came`, came.map((item) => entry(item, `from ${rank(place(before, item), before)}`))),
    column("Moved up", `${box.id}-rose`, rose.map(([item, by]) => entry(item, `by ${plural(by, "place")}`))),
    column("No longer in the list", `${box.id}-left`, left.map((item) => entry(item, `to ${rank(place(now, item), now)}`))),
  );
  return came.length;
}
