"use strict";

// Tables sort by their headings: numbers by value, words by the alphabet, missing cells always last.
(() => {
  const announcement = document.getElementById("announcement");
  const words = new Intl.Collator(document.documentElement.lang, { numeric: true });

  const compare = (a, b, turn) => {
    const gone = [a, b].map((cell) => "missing" in cell.dataset);
    if (gone[0] || gone[1]) return gone[0] - gone[1];
    const numbers = [a, b].map((cell) => cell.dataset.number);
    if (numbers[0] !== undefined && numbers[1] !== undefined) return turn * (numbers[0] - numbers[1]);
    return turn * words.compare(a.textContent, b.textContent);
  };

  const sort = (table, heading, place) => {
    const order = heading.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    const turn = order === "ascending" ? 1 : -1;
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", order);
    const body = table.tBodies[0];
    const rows = [...body.rows].sort((a, b) => compare(a.cells[place], b.cells[place], turn));
    body.append(...rows);
    announcement.textContent = `Sorted by ${heading.textContent.trim()}, ${order}.`;
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((heading, place) => {
      heading.querySelector("button").addEventListener("click", () => sort(table, heading, place));
    });
  }

  // Paper cannot be clicked: what is folded is printed open.
  const folded = new Set();
  addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("details:not([open])")) {
      folded.add(fold);
      fold.open = true;
    }
  });
  addEventListener("afterprint", () => {
    for (const fold of folded) fold.open = false;
    folded.clear();
  });

  // A link into a fold opens it.
  const reveal = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const fold = target && target.closest("details");
    if (fold) {
      fold.open = true;
      target.scrollIntoView();
    }
  };
  addEventListener("hashchange", reveal);
  reveal();
})();
