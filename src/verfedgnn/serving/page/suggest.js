// A text field with suggestions: arrow keys move, Enter selects, Escape closes.
"use strict";

// `find(text)` returns choices, `show(choice)` the parts of an entry, `choose(choice)` takes one. `typed(text)` takes a text that was
// entered without choosing, if given. The hint says so when nothing is found.
function suggest(input, list, { find, show, choose, typed = null, none }) {
  const hint = $(`${list.id}-hint`);
  let choices = [], active = -1, turn = 0;

  function close() {
    turn++;
    list.hidden = true;
    hint.textContent = "";
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
    active = -1;
  }

  function mark(place) {
    active = place;
    [...list.children].forEach((option, index) => option.setAttribute("aria-selected", String(index === place)));
    list.children[place].scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", `${list.id}-${place}`);
  }

  function take(choice) {
    close();
    choose(choice);
  }

  async function open() {
    const mine = ++turn, found = await find(input.value.trim());
    if (mine !== turn || document.activeElement !== input) return;
    choices = found;
    list.replaceChildren(...found.map((choice, index) => {
      const option = make("li", { role: "option", id: `${list.id}-${index}`, "aria-selected": "false" }, ...show(choice));
      option.addEventListener("mousedown", (event) => event.preventDefault());
      option.addEventListener("click", () => take(choice));
      return option;
    }));
    active = -1;
    list.hidden = found.length === 0;
    input.setAttribute("aria-expanded", String(found.length > 0));
    hint.textContent = found.length === 0 ? none : "";
  }

  input.addEventListener("input", () => guarded(open));
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (list.hidden) return guarded(open);
      mark((active + (event.key === "ArrowDown" ? 1 : active < 0 ? 0 : -1) + choices.length) % choices.length);
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (!list.hidden && active >= 0) take(choices[active]);
      else if (typed && input.value.trim()) {
        close();
        typed(input.value.trim());
      } else if (!typed && !list.hidden) take(choices[0]);
    } else if (event.key === "Escape") close();
  });
  return { close, open: () => guarded(open) };
}
