// The table of all methods can be filtered: by a text, by words of these columns, and by what clients compute at most.
const WORDS = ["against", "sends beside the weights", "tasks"];
const NAMES = { c: "classification", s: "segmentation", r: "regression", m: "multilabel", t: "tokens" };

function filtered(table) {
  const heads = [...table.tHead.rows[0].cells].map(cell => cell.textContent.trim());
  const rows = [...table.tBodies[0].rows], cell = (row, head) => row.cells[heads.indexOf(head)].textContent.trim();
  const words = (row, head) => (head === "tasks" ? [...cell(row, head)] : cell(row, head).split(", ").map(word => word || "nothing"));
  const form = document.createElement("form"), shown = document.createElement("output");
  const field = (label, input) => {
    const name = document.createElement("label");
    name.append(label + " ", input); form.append(name);
    return input;
  };
  const select = (label, options) => {
    const input = document.createElement("select");
    input.append(new Option("any", ""), ...options.map(([value, text]) => new Option(text, value)));
    return field(label, input);
  };
  const text = field("text", Object.assign(document.createElement("input"), { type: "search" }));
  const choices = WORDS.map(head => [head, select(head, [...new Set(rows.flatMap(row => words(row, head)))].sort().map(word => [word, NAMES[word] || word]))]);
  const cost = select("computing", [1.1, 2, 4].map(most => [most, `at most ${most} times FedAvg's`]));
  const filter = () => {
    for (const row of rows)
      row.hidden = !row.textContent.toLowerCase().includes(text.value.toLowerCase())
        || choices.some(([head, { value }]) => value && !words(row, head).includes(value))
        || Boolean(cost.value) && !(parseFloat(cell(row, "computing")) <= cost.value);
    shown.textContent = `${rows.filter(row => !row.hidden).length} of ${rows.length} methods`;
  };
  form.className = "filter";
  form.addEventListener("input", filter);
  form.addEventListener("submit", event => event.preventDefault());
  form.append(shown);
  (table.closest(".md-typeset__scrollwrap") || table).before(form);
  filter();
}

for (const table of document.querySelectorAll("article table"))
  if (table.tHead?.textContent.includes("one of its kind")) filtered(table);

// The theme leaves its search dialog without a name, which screen readers need.
document.querySelector(".md-search")?.setAttribute("aria-label", "search");
