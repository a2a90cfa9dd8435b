// Tables sort when a column's head is pressed; numbers by value (data-v), the rest as text.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent.trim();
      const compare = (a, b) => value(a).localeCompare(value(b), "en", { numeric: true });
      const byNumber = (a, b) => Number(value(a)) - Number(value(b));
      const rows = [...table.tBodies[0].rows];
      const numeric = rows.every((row) => row.cells[column].dataset.v !== undefined && !isNaN(Number(value(row))));
      rows.sort(numeric ? byNumber : compare);
      table.tBodies[0].append(...(down ? rows.reverse() : rows));
    });
  });
}
