// Align columns of numbers right, give long text a readable width, and let the keyboard scroll wide tables.
const NUMBER = /^[(+\-−]*\d[\d.,]*( (%|s|ms|B|kB|MB|GB))?([^a-z]|to)*$/;
document$.subscribe(() => {
  for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
    const rows = [...table.rows], body = rows.slice(1);
    [...(rows[0]?.cells ?? [])].forEach((head, place) => {
      const cells = body.map((row) => row.cells[place]).filter(Boolean), texts = cells.map((cell) => cell.textContent.trim());
      const filled = texts.filter((text) => !["", "-", "–"].includes(text));
      if (place > 0 && filled.length && filled.every((text) => NUMBER.test(text))) for (const cell of [head, ...cells]) cell.classList.add("number");
      if (texts.some((text) => text.length > 40)) for (const cell of [head, ...cells]) cell.classList.add("long");
    });
  }
  requestAnimationFrame(() => {
    for (const box of document.querySelectorAll(".md-typeset__scrollwrap")) {
      const heads = [...box.querySelectorAll("th")].map((cell) => cell.textContent.trim()).filter(Boolean);
      for (const [name, value] of [["tabindex", "0"], ["role", "region"], ["aria-label", `Table: ${heads.join(", ")}`]]) box.setAttribute(name, value);
    }
  });
});
