// The history below the answers: thumbnails, export as JSON or CSV, and clearing it.
import { byId, h, icon, mark, save, say, settings, soft, t } from "./ui.js";
import { add, all, asJson, change, clear, historyAsCsv } from "./history-store.js";
import { judged } from "./strictness.js";
import { thumbnail } from "./shrink.js";

const section = byId("history");
let addresses = [];
let reopen = null;

/** Store an answer; `blob` is the picture that the model saw, and `shown` identifies the answer's card. */
export async function remember(file, blob, answer, { original }, shown) {
  await add({
    shown,
    system: settings.system,
    answer,
    photo: blob,
    original,
    at: new Date().toISOString(),
    file: file.name,
    thumb: await thumbnail(blob),
  });
  await show();
}

/** Store that the reader corrected the answer of a card. */
export async function corrected(shown, answer) {
  await change(shown, answer);
  await show();
}

/** Return a button that opens the answer as a card again, if it belongs to this page's system. */
function opener(entry) {
  if (settings.mode !== "classify" || entry.system !== settings.system) return null;
  const button = h("button", { class: "button small quiet", type: "button",
    "aria-label": `${t("history_open")}: ${entry.file}` }, t("history_open"));
  button.addEventListener("click", () =>
    reopen({ name: entry.file, blob: entry.photo, answer: entry.answer, ms: 0, original: entry.original, shown: entry.shown }));
  return button;
}

function row(entry) {
  const when = new Date(entry.at);
  const answer = entry.answer ?? entry;
  const verdict = answer.verdict ?? judged(answer);
  let picture = icon(answer.label) ?? h("span", { class: "icon" });  // for photos that no browser can show
  if (entry.thumb) {
    addresses.push(URL.createObjectURL(entry.thumb));
    picture = h("img", { src: addresses.at(-1), alt: "", width: "56", height: "56" });
  }
  return h("li", {}, picture, h("div", { class: "what" },
    h("b", {}, ...soft(verdict.text)), mark(verdict),
    ...(answer.you_said ? [h("small", {}, t("you_said", { label: answer.you_said }))] : []),
    h("small", {}, `${entry.file} · ${answer.model.name ?? entry.model}`)),  // the pages of all systems share this history
  h("time", { datetime: entry.at }, when.toLocaleString([], { dateStyle: "short", timeStyle: "short" })), opener(entry));
}

export async function show() {
  const entries = await all();
  for (const address of addresses) URL.revokeObjectURL(address);
  addresses = [];
  section.hidden = entries.length === 0;
  section.querySelector("summary .count").textContent = String(entries.length);
  byId("history-list").replaceChildren(...entries.map(row));
}

/** Set up the history; `open` makes a card of an entry. */
export function history(open) {
  reopen = open;
  byId("history-json").addEventListener("click", async () =>
    save(new Blob([asJson(await all())], { type: "application/json" }), "gourmetgram.json"));
  byId("history-csv").addEventListener("click", async () =>
    save(new Blob([historyAsCsv(await all())], { type: "text/csv" }), "gourmetgram.csv"));
  byId("history-clear").addEventListener("click", async () => {
    if (!confirm(t("history_confirm", { count: (await all()).length }))) return;
    await clear();
    await show();
    say(t("history_cleared"));
    byId("file").focus({ preventScroll: true });
  });
  show();
}
