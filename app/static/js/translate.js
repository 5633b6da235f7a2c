// Two panes: what is written on one side appears in English on the other, word by word as it is made.
import { streamed } from "./translate-stream.js";
import { byId, h, ms, say, settings, t, withScript } from "./ui.js";
import * as health from "./health.js";

const KEPT = "gourmet:translations";
const MOST_KEPT = 20;

const form = byId("form");
const text = byId("text");
const shown = byId("translation");
let running = null;

async function translate() {
  const source = text.value.trim();
  if (!source) return;
  running?.abort();
  const mine = running = new AbortController();
  const started = performance.now();
  let first = 0;
  begin();
  try {
    const asked = JSON.stringify({ text: source, stream: true });
    const whole = await streamed(settings.urls.translate, asked, mine.signal, (piece) => {
      first ||= performance.now() - started;
      shown.append(piece);
    }, { "Content-Type": "application/json" });
    tell(whole, first, performance.now() - started);
    keep({ text: source, translation: whole.text });
    say(whole.text);
  } catch (error) {
    if (!mine.signal.aborted) fail(error);
    else if (running === mine) byId("facts").textContent = t("translate_stopped");
  } finally {
    if (running === mine) end();
  }
}

function begin() {
  shown.textContent = byId("facts").textContent = "";
  shown.dataset.waiting = "";
  byId("problem").hidden = true;
  byId("stop").hidden = false;
  byId("copy").disabled = true;
}

function end() {
  running = null;
  delete shown.dataset.waiting;
  byId("stop").hidden = true;
  byId("copy").disabled = !shown.textContent;
}

function tell(whole, first, total) {
  const words = whole.text.split(/\s+/).filter(Boolean).length;
  byId("facts").replaceChildren(
    h("span", {}, t("by"), " ", h("code", {}, whole.model.name), " ", t("version", { version: whole.model.version })),
    h("span", {}, t("translate_time", { first: ms(first), rate: (1000 * words / total).toFixed(0) })));
}

function fail(error) {
  const title = settings.texts[`title_${error.code}`] ? `title_${error.code}` : "title_other";
  byId("problem").replaceChildren(h("h3", {}, t(title)), h("p", {}, error.message));
  byId("problem").hidden = false;
  if (error.passes) health.check();
}

const kept = () => JSON.parse(sessionStorage.getItem(KEPT) ?? "[]");

function keep(entry) {
  const others = kept().filter((each) => each.text !== entry.text);
  sessionStorage.setItem(KEPT, JSON.stringify([entry, ...others].slice(0, MOST_KEPT)));
  list();
}

/** What this tab translated before; a click shows it again. */
function list() {
  const entries = kept();
  byId("history").hidden = entries.length === 0;
  byId("earlier").replaceChildren(...entries.map((entry) => {
    const button = h("button", { class: "button small quiet", type: "button" },
      h("span", { lang: "ru" }, entry.text), h("small", { lang: "en" }, entry.translation));
    button.addEventListener("click", () => {
      running?.abort();
      text.value = entry.text;
      shown.textContent = entry.translation;
      byId("copy").disabled = false;
      text.focus();
    });
    return h("li", {}, button);
  }));
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  translate();
});
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
addEventListener("keydown", (event) => { if (event.key === "Escape") running?.abort(); });
byId("stop").addEventListener("click", () => running?.abort());
byId("copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText(shown.textContent);
  say(t("copied"));
});
byId("forget").addEventListener("click", () => {
  sessionStorage.removeItem(KEPT);
  list();
});
for (const button of byId("examples").querySelectorAll("button")) {
  button.addEventListener("click", () => {
    text.value = button.textContent;
    form.requestSubmit();
  });
}
withScript();
list();
health.watch();
