"use strict";
// The page can be read without this. It makes the heads of tables into buttons that sort, adds a field that
// filters, and opens what is folded before the page is printed.
const said = document.getElementById("said");

function keyOf(cell) {
  const key = cell.dataset.key ?? cell.textContent.trim();
  if (key === "" || key === "–") return null;
  const number = Number(key);
  return Number.isNaN(number) ? key : number;
}

function before(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a === "number") return -1;
  if (typeof b === "number") return 1;
  return a.localeCompare(b, "en", { numeric: true });
}

function sort(table, head, index) {
  const numbers = head.classList.contains("number");
  const first = numbers ? "descending" : "ascending"; // of numbers the largest are looked for
  const other = numbers ? "ascending" : "descending";
  const order = head.getAttribute("aria-sort") === first ? other : first;
  const sign = order === "ascending" ? 1 : -1;
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row) => [keyOf(row.cells[index]), row]);
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null); // what has no value stays last
    return sign * before(a, b);
  });
  body.append(...rows.map(([, row]) => row));
  for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", order);
  said.textContent = `${table.caption.textContent}: sorted by ${head.textContent.trim()}, ${order}`;
}

for (const table of document.querySelectorAll("table.sortable")) {
  Array.from(table.tHead.rows[0].cells).forEach((head, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => sort(table, head, index));
  });
}

document.querySelectorAll("[data-search]").forEach((held, index) => {
  const table = held.querySelector("table");
  const label = document.createElement("label");
  const field = document.createElement("input");
  field.type = "search";
  field.id = `search${index}`;
  label.htmlFor = field.id;
  label.textContent = "Show rows with ";
  label.className = "search";
  label.append(field);
  held.prepend(label);
  field.addEventListener("input", () => {
    const wanted = field.value.toLowerCase();
    let count = 0;
    for (const row of table.tBodies[0].rows) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
      count += !row.hidden;
    }
    said.textContent = `${table.caption.textContent}: ${count} rows`;
  });
});

let opened = [];
window.addEventListener("beforeprint", () => {
  opened = Array.from(document.querySelectorAll("details:not([open])"));
  for (const one of opened) one.open = true;
});
window.addEventListener("afterprint", () => {
  for (const one of opened) one.open = false;
});
