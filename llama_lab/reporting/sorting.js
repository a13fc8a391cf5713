function sortable(table, told = () => {}) {  // its heads become buttons that sort; told(words) hears by what
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const value = (row, at, numeric) => numeric ? parseFloat(row.cells[at].dataset.value) : row.cells[at].textContent.trim();
  const compare = (a, b, numeric) => numeric ? a - b : a.localeCompare(b, "en", {numeric: true});
  const absent = v => v === "" || Number.isNaN(v);
  function sort(at) {
    const head = heads[at], numeric = head.classList.contains("number"), down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const keyed = rows.map((row, i) => ({row, i, v: value(row, at, numeric)}));
    keyed.sort((a, b) => absent(a.v) - absent(b.v) || (absent(a.v) ? 0 : (down ? -1 : 1) * compare(a.v, b.v, numeric)) || a.i - b.i);
    body.append(...keyed.map(k => k.row));
    told(`, by ${head.innerText.trim()}, ${down ? "descending" : "ascending"}`);
  }
  heads.forEach((head, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(at));
    head.append(button);
  });
}
