// Requests to the server, with the API key if there is one.
"use strict";

const KEY = "verfedgnn-key";
// `opened` says that nobody chose the user in view: the page opens with a typical one. `unknown` is an id that was typed and that the run does not know; `count` is the number of ratings of the user in
// view, and `elsewhere` the number of other organisations at which the user has any.
const state = { run: null, party: null, user: null, unknown: null, opened: false, model: "federated", where: "", asked: 0, count: 0, elsewhere: 0, lists: {} };
const $ = (id) => document.getElementById(id);
const say = (text) => { $("status").textContent = text; };

// An answer of the server that is an error.
class Problem extends Error {
  constructor(status, { cause, remedy }) {
    super(`${cause[0].toUpperCase()}${cause.slice(1)}: ${remedy}.`);
    this.status = status;
    this.cause = cause;
  }
}

function send(path, parameters = {}, body = null) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== null && value !== ""));
  const key = sessionStorage.getItem(KEY), headers = key ? { Authorization: `Bearer ${key}` } : {};
  if (body === null) return fetch(`${path}?${query}`, { headers });
  return fetch(path, { method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

async function ask(path, parameters = {}, body = null) {
  const answer = await send(path, parameters, body), found = await answer.json();
  if (!answer.ok) throw new Problem(answer.status, found.error);
  return found;
}

async function guarded(work) {
  try {
    await work();
  } catch (error) {
    if (error.status === 401 || (error.status === 403 && state.run === null)) return askForKey(error);
    if (state.run === null) $("status").hidden = false;
    say(error instanceof TypeError ? "The server does not respond. Check that it is still running, then reload this page." : error.message);
  }
}

// Replace the whole page by the form for a key. Nothing of the run stays visible.
function askForKey(error) {
  const tried = sessionStorage.getItem(KEY) !== null;
  sessionStorage.removeItem(KEY);
  state.run = null;
  for (const part of document.querySelectorAll(".open, #warning, #newcomer, #for-user, #api")) part.hidden = true;
  $("run-name").textContent = "";
  const lacks = error.status === 403;
  const title = lacks ? "This API key may not open the page" : tried ? "This API key is wrong" : "This server requires an API key";
  $("key-title").textContent = title;
  document.title = `${title} · verfedgnn`;
  $("key-text").textContent = lacks
    ? `${error.cause[0].toUpperCase()}${error.cause.slice(1)}. Ask the person who runs the server for a key with the right "browse", and enter it here.`
    : tried
      ? "The server refused the key, so nothing is shown. It may be mistyped, or it was replaced when the server was started again. Enter it once more, or ask the person who runs the server: it is the key in VERFEDGNN_API_KEY or in the file given as --api-key-file."
      : "Ask the person who runs the server for the key.";
  document.body.classList.toggle("refused", tried);
  $("key-form").hidden = false;
  $("key").focus();
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("key").value.trim());
  $("key").value = "";
  guarded(start);
});
