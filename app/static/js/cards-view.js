// Many cards: a compact grid with sorting and filters, the counts, and a table for download.
import { cardOf } from "./card.js";
import { WORDS, asCsv } from "./history-store.js";
import { byId, named, save, settings, t } from "./ui.js";

// The reader sees two or three cards of a phone's width, and more of a desk's.
const COMPACT_ABOVE = matchMedia("(max-width: 39.99rem)").matches ? 3 : 6;
const captioning = settings.mode === "caption";
const cards = byId("cards");
const compact = byId("compact");
const COLUMNS = captioning ? ["file", "text", "written_by", "sure", "score", "model", "version", "error"]
  : ["file", ...WORDS, "error"];
let isChosen = false; // true if the reader, and not the number of cards, chose the view

/** Return the cards that are answered or failed: {card, row, isSure, isUnsure, group}. */
const finished = () => [...cards.children].map((card) => ({ card, row: cardOf(card).row, ...grouped(cardOf(card)) })).filter(({ row }) => row);

function grouped({ row, verdict }) {
  if (row?.error) return { isSure: false, isUnsure: false, group: t("many_failed") };
  const isSure = verdict ? verdict.state === "sure" : row?.sure !== false;
  if (!verdict) return { isSure, isUnsure: !isSure, group: t(isSure ? "many_described" : "many_unsure") };
  return { isSure, isUnsure: ["not_sure", "doubtful"].includes(verdict.state), group: isSure ? named(row.label) : verdict.word };
}

const newest = (a, b) => Number(b.card.dataset.added) - Number(a.card.dataset.added);
const likely = ({ row }) => row.probability ?? row.score ?? -Infinity;
const ORDERS = {
  added: newest,
  kind: (a, b) => a.group.localeCompare(b.group) || likely(b) - likely(a) || newest(a, b),
  doubt: (a, b) => a.isSure - b.isSure || likely(a) - likely(b) || newest(a, b),
};

/** Write the counts: "28 answered: Soup 12, Bread 9, not sure 5, not food 2". */
function counts(rows) {
  const byGroup = new Map();
  for (const { group } of rows) byGroup.set(group, (byGroup.get(group) ?? 0) + 1);
  const parts = [...byGroup].sort(([, a], [, b]) => b - a).map(([group, count]) => `${group} ${count}`);
  return t("many_counts", { count: rows.filter(({ row }) => !row.error).length, parts: parts.join(", ") });
}

function refresh() {
  const rows = finished();
  const count = cards.children.length;
  if (!count) {
    isChosen = false;
    for (const box of [compact, byId("only-unsure")]) box.checked = false;
    byId("sort").value = "added";
  }
  if (!isChosen) compact.checked = count > COMPACT_ABOVE;
  byId("many").hidden = count < 2;
  byId("counts").textContent = rows.length ? counts(rows) : "";
  cards.classList.toggle("compact", compact.checked);
  for (const { card, isUnsure } of rows) card.hidden = byId("only-unsure").checked && !isUnsure;
  // A card that is asked again keeps its place.
  if (rows.length < count || cards.contains(document.activeElement)) return;
  const sorted = rows.sort(ORDERS[byId("sort").value]).map(({ card }) => card);
  if (sorted.some((card, at) => card !== cards.children[at])) cards.append(...sorted);
}

new MutationObserver(refresh).observe(cards, { childList: true, subtree: true, attributeFilter: ["data-state"] });
document.addEventListener("gourmet:strictness", () => {
  for (const card of cards.children) cardOf(card).judge();
  refresh();
});
compact.addEventListener("input", () => { isChosen = true; });
byId("many").addEventListener("input", refresh);
byId("cards-csv").addEventListener("click", () =>
  save(new Blob([asCsv(finished().map(({ row }) => row), COLUMNS)], { type: "text/csv" }), captioning ? "captions.csv" : "answers.csv"));
