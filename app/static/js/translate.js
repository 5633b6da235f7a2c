// Two panes: a text on one side is translated on the other, word by word as it is made.
import { streamed } from "./translate-stream.js";
import { byId, h, ms, say, settings, t, withScript } from "./ui.js";
import * as health from "./health.js";

const KEPT = `gourmet:translations:${settings.system}`;
const [FROM, TO] = settings.languages;
const MAX_KEPT = 20;

const form = byId("form");
const text = byId("text");
const shown = byId("translation");
let running = null;
let isForeign = false;

async function translate() {
  const source = text.value.trim();
  if (!source) return;
  running?.abort();
  const mine = running = new AbortController();
  const started = performance.now();
  let first = 0;
  begin();
  try {
    const body = JSON.stringify({ text: source, stream: true, system: settings.system });
    const whole = await streamed(settings.urls.translate, body, mine.signal, (piece) => {
      first ||= performance.now() - started;
      shown.append(piece);
    }, { "Content-Type": "application/json" });
    tell(whole, first, performance.now() - started);
    const { text: translation, warning, sure, sentences } = whole;
    mark(translation, sure, sentences);
    warn(warning, sure, sentences);
    keep({ text: source, translation, warning, sure, sentences });
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
  warn();
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

const isUnsure = (sentence) => sentence.sure === false;

/** Show the translation; mark the unsure sentences, unless all of them are unsure. */
function mark(translation, sure, sentences = [{ text: translation, sure }]) {
  if (sentences.every(isUnsure)) return shown.replaceChildren(translation);
  let rest = translation;
  const parts = sentences.flatMap((sentence) => {
    const begin = rest.indexOf(sentence.text);
    const before = rest.slice(0, begin);
    rest = rest.slice(begin + sentence.text.length);
    return [before, isUnsure(sentence) ? h("mark", {}, sentence.text) : sentence.text];
  });
  shown.replaceChildren(...parts, rest);
}

/** Show why the translation is doubtful, if it is. */
function warn(warning = "", sure = true, sentences = [{ sure: sure || Boolean(warning) }]) {
  const doubt = byId("doubt");
  const isRough = sure === false;
  const unsure = !isRough || !sentences.some(isUnsure) ? "" : t(sentences.every(isUnsure) ? "unsure_of_all" : "unsure_of");
  const [label, reason] = doubt.children;
  label.textContent = t(isRough ? "rough" : "careful");
  reason.textContent = [warning, unsure].filter(Boolean).join("; ");
  doubt.hidden = !isRough && !warning;
}

/** Warn before the text is sent if it is too long or does not look Russian; the server checks both too. */
function warnEarly() {
  const { lang } = document.documentElement, count = [...text.value].length;
  const isTooLong = count > settings.limit;
  byId("length").textContent = t(isTooLong ? "too_long" : "length", { count: count.toLocaleString(lang), limit: settings.limit.toLocaleString(lang) });
  byId("length").classList.toggle("doubt", isTooLong);
  byId("go").disabled = isTooLong;
  if (settings.warnings.russian) warnOfLanguage();
}

function warnOfLanguage() {
  const { russian, others, hardly_russian: hardly, other_cyrillic: cyrillic } = settings.warnings;
  const letters = text.value.match(/\p{L}/gu) ?? [];
  const count = letters.filter((letter) => new RegExp(russian, "i").test(letter)).length;
  const foreign = new Set(text.value.toLowerCase().match(new RegExp(others, "g")));
  const language = byId("language");
  language.textContent = 2 * count < letters.length ? hardly
    : foreign.size ? cyrillic.replace("{letters}", [...foreign].sort().join(", ")) : "";
  language.hidden = !language.textContent;
  isForeign = language.textContent === hardly;
  byId("go").textContent = t(isForeign ? "anyway" : "go");
}

function write(source) {
  text.value = source;
  warnEarly();
}

function fail(error) {
  const title = settings.texts[`title_${error.code}`] ? `title_${error.code}` : "title_other";
  byId("problem").replaceChildren(h("h3", {}, t(title)), h("p", {}, error.message));
  byId("problem").hidden = false;
  if (error.passes) health.check();
}

const kept = () => JSON.parse(sessionStorage.getItem(KEPT) ?? "[]");

function keep(entry) {
  const others = kept().filter((other) => other.text !== entry.text);
  sessionStorage.setItem(KEPT, JSON.stringify([entry, ...others].slice(0, MAX_KEPT)));
  list();
}

/** List the translations of this tab; a click shows one again. */
function list() {
  const entries = kept();
  byId("history").hidden = entries.length === 0;
  byId("earlier").replaceChildren(...entries.map((entry) => {
    const button = h("button", { class: "button small quiet", type: "button" },
      h("span", { lang: FROM }, entry.text), h("small", { lang: TO }, entry.translation));
    button.addEventListener("click", () => {
      running?.abort();
      write(entry.text);
      mark(entry.translation, entry.sure, entry.sentences);
      warn(entry.warning, entry.sure, entry.sentences);
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
text.addEventListener("input", warnEarly);
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    if (isForeign) byId("go").focus(); // this button asks for confirmation
    else byId("go").click();
  }
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
    write(button.firstElementChild.textContent);
    form.requestSubmit();
  });
}
const named = new Intl.DisplayNames(document.documentElement.lang, { type: "language" });
for (const heading of document.querySelectorAll("[data-language]")) {
  heading.textContent = named.of(heading.dataset.language);
}
withScript();
list();
warnEarly(); // the browser may have restored a text
health.watch();
