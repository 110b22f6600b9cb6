"use strict";
// Nothing here is needed to read the report: it sorts tables, and shows origins where there is no pointer to rest.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (row) => row.cells[column].dataset.v ?? "";
      const compare = (a, b) => {
        const [x, y] = [value(a), value(b)];
        // What is not known stays at the end either way.
        if (x === "" || y === "") return (x === "") - (y === "");
        const [p, q] = [Number(x), Number(y)];
        const order = Number.isNaN(p) || Number.isNaN(q) ? x.localeCompare(y) : p - q;
        return up ? order : -order;
      };
      const body = table.tBodies[0];
      body.append(...[...body.rows].sort(compare));
    });
  });
}
const origin = document.getElementById("origin");
const words = (target) => {
  const figure = target.closest(".f[title]");
  if (figure) return `${figure.textContent.trim()}: ${figure.title}`;
  const shape = target.closest("svg *");
  return shape?.querySelector(":scope > title")?.textContent ?? "";
};
document.addEventListener("click", (event) => {
  const text = words(event.target);
  origin.hidden = text === "";
  origin.textContent = text;
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") origin.hidden = true;
});
document.documentElement.dataset.ready = "";
