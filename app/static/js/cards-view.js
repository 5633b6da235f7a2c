// Many cards: a compact grid, sorted or only what is not sure, the counts, and a table of all to save.
import { asCsv } from "./history-store.js";
import { byId, h, save, settings, t } from "./ui.js";

const cards = byId("cards");
const answers = new WeakMap();
const COLUMNS = ["file", "label", "probability", "sure", "relevant", "model", "version"];

const answered = () => [...cards.children].filter((card) => card.dataset.state === "answered" && answers.has(card))
  .map((card) => ({ card, ...answers.get(card) }));

const newest = (a, b) => Number(b.card.dataset.added) - Number(a.card.dataset.added);
const ORDERS = {
  added: newest,
  kind: (a, b) => a.group.localeCompare(b.group) || b.probability - a.probability || newest(a, b),
  doubt: (a, b) => a.sure - b.sure || a.probability - b.probability || newest(a, b),
};

/** "28 answered: Soup 12, Bread 9, not sure 5, not food 2". */
function counts(rows) {
  const found = new Map();
  for (const { group } of rows) found.set(group, (found.get(group) ?? 0) + 1);
  const parts = [...found].sort(([, a], [, b]) => b - a).map(([group, count]) => `${group} ${count}`);
  return t("many_counts", { count: rows.length, parts: parts.join(", ") });
}

function refresh() {
  const rows = answered();
  byId("many").hidden = cards.children.length < 2;
  byId("counts").textContent = rows.length ? counts(rows) : "";
  // A card that is being asked again has not lost its place.
  if (rows.length < cards.children.length || cards.contains(document.activeElement)) return;
  const sorted = rows.sort(ORDERS[byId("sort").value]).map(({ card }) => card);
  if (sorted.some((card, at) => card !== cards.children[at])) cards.append(...sorted);
}

document.addEventListener("gourmet:answered", ({ detail: { name, answer, card, actions } }) => {
  const unsure = answer.relevant !== false && !answer.sure;
  const group = answer.relevant === false ? t("correction_other", { subject: settings.subject })
    : unsure ? t("many_unsure") : answer.label;
  answers.set(card, { group, sure: answer.sure, probability: answer.probability, row: { ...answer, file: name,
    model: answer.model.name, version: answer.model.version } });
  card.dataset.doubt = unsure ? "unsure" : "";
  const open = h("button", { class: "button small quiet", type: "button", "data-do": "open" });
  const toggle = (isOpen) => {
    card.classList.toggle("open", isOpen);
    const label = t(isOpen ? "many_close" : "many_open");
    open.textContent = label;
    open.setAttribute("aria-label", `${label}: ${name}`);
    open.setAttribute("aria-expanded", String(isOpen));
  };
  open.addEventListener("click", () => toggle(!card.classList.contains("open")));
  toggle(false);
  actions.append(open);
});

new MutationObserver(refresh).observe(cards, { childList: true, subtree: true, attributeFilter: ["data-state"] });
byId("compact").addEventListener("change", ({ target }) => cards.classList.toggle("compact", target.checked));
byId("only-unsure").addEventListener("change", ({ target }) => cards.classList.toggle("only-unsure", target.checked));
byId("sort").addEventListener("change", refresh);
byId("cards-csv").addEventListener("click", () =>
  save(new Blob([asCsv(answered().map(({ row }) => row), COLUMNS)], { type: "text/csv" }), "answers.csv"));
