// A caption: it grows word by word; then the reader can edit and copy it.
import * as api from "./api.js";
import { waterfall } from "./charts.js";
import { streamed } from "./translate-stream.js";
import { h, ms, say, settings, t } from "./ui.js";

// With this many beams the model returns three alternatives.
const BEAMS = 4;

const FORMATS = {
  text: (text) => text,
  alt: (text) => `alt="${text.replaceAll("&", "&amp;").replaceAll('"', "&quot;").replaceAll("<", "&lt;")}"`,
  markdown: (text, name) =>
    `![${text.replace(/[\\[\]]/g, "\\$&")}](${encodeURI(name).replace(/[()]/g, (bracket) => `%${bracket.charCodeAt(0).toString(16)}`)})`,
};

export class Caption {
  #text = h("textarea", { rows: "2", readOnly: true });
  #by = h("p", { class: "note" });
  #doubt = h("p", { class: "doubt", hidden: true });
  #others = h("ul", { class: "wordings" });
  #facts = h("div");
  #asking = new AbortController();
  #answer = null;

  /** Make an empty caption; `onEdited` is called after an edit. */
  constructor(name, photo, onEdited = () => {}) {
    this.name = name;
    this.photo = photo;
    this.#text.setAttribute("aria-label", t("caption_of", { name }));
    this.#text.addEventListener("input", () => this.#tell());
    this.#text.addEventListener("change", onEdited);
    this.#others.addEventListener("click", ({ target }) => {
      if (target.tagName !== "BUTTON") return;
      this.#set(target.textContent);
      onEdited();
      this.#text.focus({ preventScroll: true });
    });
    this.element = h("div", { class: "caption" },
      this.#text, this.#by, this.#doubt, this.#others, this.#facts);
    this.actions = [...Object.keys(FORMATS).map((format) => this.#copy(format)), this.#button("others", () => this.#search())];
  }

  /** The content for the card store and for the table. */
  get content() {
    const text = this.#text.value.replace(/\s+/g, " ").trim();
    return this.#answer && { ...this.#answer, file: this.name, text, original: this.#answer.text,
      written_by: this.#edited ? "person" : "model" };
  }

  get #edited() {
    return ![this.#answer.text, ...this.#answer.alternatives ?? []].includes(this.#text.value);
  }

  /** Ask for the caption and show it; `shrinkMs` is the time of shrinking the photo. Throws a Failure. */
  async ask(signal, shrinkMs = 0) {
    const form = new FormData();
    form.append("file", this.photo, this.name);
    form.append("stream", "1");
    this.#text.setAttribute("aria-busy", "true");
    const started = performance.now();
    let first = 0;
    try {
      const answer = await streamed(settings.urls.caption, form, signal, (piece) => {
        first ||= performance.now() - started;
        this.#text.value += piece;
      });
      this.show({ ...answer, first, phases: phases(answer.timings_ms, shrinkMs, first, performance.now() - started) });
    } finally {
      this.#text.removeAttribute("aria-busy");
    }
  }

  /** Show an answer, or the stored content of one. */
  show({ original, ...answer }) {
    this.#answer = { ...answer, text: original ?? answer.text };
    this.#text.readOnly = false;
    this.#doubt.textContent = t("caption_unsure");
    this.#facts.replaceChildren(waterfall(answer.phases, answer,
      h("span", {}, t("caption_first", { first: ms(answer.first), tokens: answer.tokens }))));
    this.#list(answer.alternatives);
    this.#set(answer.text);
  }

  #set(text) {
    this.#text.value = text;
    this.#tell();
  }

  #tell() {
    this.#by.textContent = t(this.#edited ? "caption_by_person" : "caption_by_model");
    this.#doubt.hidden = this.#answer.sure !== false || this.#edited;
  }

  #button(action, work) {
    const label = t(`caption_${action}`);
    const button = h("button", { class: "button small quiet", type: "button", "data-do": action,
      "aria-label": `${label}: ${this.name}` }, label);
    button.addEventListener("click", work);
    return button;
  }

  #copy(format) {
    return this.#button(format, async () => {
      const file = this.name.split("/").at(-1);
      await navigator.clipboard.writeText(FORMATS[format](this.content.text, file));
      say(t("copied"));
    });
  }

  /** Show the alternatives of a beam search. */
  async #search() {
    this.#asking.abort();
    this.#asking = new AbortController();
    try {
      const { text, alternatives = [] } = await api.caption(this.photo, this.name, { beams: BEAMS }, this.#asking.signal);
      this.#answer.alternatives = [...new Set([this.#answer.text, text, ...alternatives])].slice(0, BEAMS);
      this.#list(this.#answer.alternatives);
      say(t("caption_found", { count: this.#answer.alternatives.length }));
    } catch (error) {
      if (!(error instanceof api.Failure)) throw error;
      say(error.message);
      this.#others.replaceChildren(h("li", { class: "doubt" }, error.message));
    }
  }

  #list(texts = []) {
    this.#others.replaceChildren(...texts.map((text) =>
      h("li", {}, h("button", { class: "button small quiet", type: "button" }, text))));
  }
}

/** Return the server's phases, surrounded by those that the browser measured. */
function phases({ receive, wait, decode, first_piece: first, triton }, shrinkMs, firstMs, allMs) {
  const before = [["receive", receive], ["wait", wait], ["decode", decode], ["first_piece", first]].filter(([, value]) => value !== undefined);
  const inside = before.reduce((sum, [, value]) => sum + value, 0);
  const words = triton - first;
  return [["shrink", shrinkMs], ["upload", Math.max(0, firstMs - inside)], ...before, ["words", words],
    ["answer", Math.max(0, allMs - Math.max(firstMs, inside) - words)]].filter(([phase, value]) => value || phase !== "shrink");
}
