// One photo's card: the photo, the progress, and then the answer or the error.
//
// Other modules may add to an answered card: listen for `gourmet:answered` on the document and put a
// button into `event.detail.actions`. `event.detail` also has name, photo, answer, the element `place`,
// which shows one thing at a time, and the element `below`, whose children stay.
import { bytes, h, icon, menu, percent, settings, soft, t } from "./ui.js";
import { ranking, waterfall } from "./charts.js";
import { panels } from "./compare.js";
import { Square } from "./square.js";
import { judged } from "./strictness.js";

/** Return the label, or all labels that apply if a picture may have several. */
export const named = (answer) => answer.labels?.map((guess) => guess.label).join(", ") || answer.label;

/** Summarise an answer: a label, two equally likely labels, a doubtful label, or "not food". */
export function inShort(answer) {
  if (answer.relevant === false) return t("irrelevant_short", { subject: settings.subject });
  if (answer.sure) return named(answer);
  const [first, second] = answer.candidates ?? [];
  return second ? t("either", { first: first.label, second: second.label }) : t("perhaps", { label: answer.label });
}

/** Return a heading instead of a label, if this is not food or may not be food. */
const objection = (answer) => answer.relevant === false ? t("irrelevant", { subject: settings.subject })
  : answer.doubtful ? t("doubtful", { subject: settings.subject }) : "";

const made = new WeakMap();

/** Return the card of an element on the page. */
export const cardOf = (element) => made.get(element);

export class Card {
  #picture = h("img", { alt: "", hidden: true });
  #body = h("div", { class: "body" });
  #actions = h("p", { class: "actions" });
  #more = h("div", { class: "more" });
  #below = h("div", { class: "more" });
  #address = "";
  #row = null;
  judge = () => {}; // shows the answer at the reader's threshold

  constructor(file, id, handlers, added = 0) {
    this.name = file.name;
    this.handlers = handlers; // {cancel, again, remove, compare} run on buttons, `look` when the square moves
    this.element = h("li", { class: "card", tabindex: "-1", "aria-label": file.name, "data-id": id, "data-added": String(added) },
      h("figure", { class: "photo" }, this.#picture, h("figcaption", { title: file.name }, file.name)),
      h("div", { class: "result-text" }, this.#body, this.#actions), this.#more, this.#below);
    if (handlers.look) this.#addSquare(handlers.look);
    this.#picture.addEventListener("load", () => { this.#picture.hidden = false; });
    // Browsers cannot show some formats that the server reads, such as TIFF.
    this.#picture.addEventListener("error", () => { this.#picture.hidden = true; });
    made.set(this.element, this);
    this.showPhoto(file);
  }

  #addSquare(look) {
    this.square = new Square(this.#picture, this.name, look);
    this.#picture.after(this.square.element);
  }

  /** Return the row of the table, or null before the photo is answered. */
  get row() {
    return this.#row?.() ?? null;
  }

  showPhoto(blob) {
    if (this.#address) URL.revokeObjectURL(this.#address);
    this.#address = URL.createObjectURL(blob);
    this.#picture.src = this.#address;
  }

  /** Show a state of the card; `row` returns its row of the table. */
  #set(state, body, actions, row = null) {
    this.#row = row;
    if (row) actions.push(this.#details());
    this.element.dataset.state = state;
    this.element.setAttribute("aria-busy", String(state === "busy" || state === "held"));
    const hadFocus = this.#actions.contains(document.activeElement);
    if (body.some((child) => child.parentNode !== this.#body)) this.#body.replaceChildren(...body);
    this.#actions.replaceChildren(...actions);
    if (hadFocus) this.element.focus({ preventScroll: true }); // the focused button was removed
  }

  /** Make the button that opens and closes the card in the compact view. */
  #details() {
    const button = h("button", { class: "button small quiet", type: "button", "data-do": "open" });
    const toggle = (isOpen) => {
      this.element.classList.toggle("open", isOpen);
      const label = t(isOpen ? "many_close" : "many_open");
      button.textContent = label;
      button.setAttribute("aria-label", `${label}: ${this.name}`);
      button.setAttribute("aria-expanded", String(isOpen));
    };
    button.addEventListener("click", () => toggle(!this.element.classList.contains("open")));
    toggle(false);
    return button;
  }

  #menu(...items) {
    return menu(`${t("more")}: ${this.name}`, ...items, ...(settings.urls.compare && settings.mode === "classify" ? [this.#button("compare")] : []),
      this.#button("again"), this.#button("remove"));
  }

  #button(action) {
    const label = t(`do_${action}`);
    const button = h("button", { class: "button small quiet", type: "button", "data-do": action,
      "aria-label": `${label}: ${this.name}` }, label);
    button.addEventListener("click", () => this.handlers[action]());
    return button;
  }

  busy(text) {
    this.#progress("busy", text);
  }

  held(text) {
    this.#progress("held", text);
  }

  #progress(state, text) {
    this.#set(state, [h("p", { class: "doing" }, text), pulse()], [this.#button("cancel")]);
  }

  #doubt(answer) {
    if (answer.relevant === false) return t("irrelevant_hint", { label: answer.label });
    if (answer.doubtful) return t("doubtful_hint", { label: answer.label });
    if (answer.calibrated === false) return t("uncalibrated", { model: answer.model.name });
    if (answer.candidates) return t("either_hint");
    const closer = settings.subject ? ` ${t("unsure_closer")}` : "";
    return t("unsure", { threshold: percent(answer.threshold) }) + closer;
  }

  /** Show an error; `isFinal`: the same photo would fail again. */
  failed(title, message, requestId = "", isFinal = false) {
    this.#more.replaceChildren();
    this.#below.replaceChildren();
    this.#set("failed", [h("div", { class: "problem" }, h("h3", {}, title), h("p", {}, message),
      requestId ? h("p", { class: "note" }, t("request"), " ", h("code", {}, requestId)) : null)],
    [...(isFinal ? [] : [this.#button("again")]), this.#button("remove")], () => ({ file: this.name, error: `${title}: ${message}` }));
  }

  /** Show the label above an answer, with a doubt or objection if there is one. */
  #verdict(article, answer) {
    const share = percent((answer.candidates ?? [answer]).reduce((sum, guess) => sum + guess.probability, 0));
    const heading = objection(answer) ? h("h3", {}, objection(answer)) : h("h3", {}, icon(answer.label),
      h("span", { class: "label" }, ...soft(answer.dish ?? inShort(answer))),
      answer.dish ? null : h("span", { class: "share" }, share));
    const [first, second] = answer.perhaps ?? [];
    const below = answer.dish ? `${inShort(answer)} · ${share}` : second ? t("perhaps_dish", { first, second }) : "";
    article.className = answer.sure ? "answer" : "answer unsure";
    article.querySelectorAll(".doubt, .dish").forEach((line) => line.remove());
    article.querySelector("h3").replaceWith(heading);
    if (!answer.sure) heading.after(h("p", { class: "doubt" }, this.#doubt(answer)));
    if (below && !objection(answer)) heading.after(h("p", { class: "dish" }, below));
  }

  /** Show the answer of one model. */
  answered(photo, answer, sent) {
    this.#more.replaceChildren();
    this.#below.replaceChildren();
    const phases = sent.ms ? [["shrink", sent.ms], ...answer.phases] : answer.phases;
    const size = photo.size < sent.original
      ? t("shrunk", { from: bytes(sent.original), to: bytes(photo.size) }) : t("sent", { size: bytes(sent.original) });
    const article = h("article", {}, h("h3"), ranking(answer.top), waterfall(phases, answer, h("span", {}, size)));
    this.judge = () => this.#verdict(article, judged(answer));
    this.judge();
    this.#set("answered", [article], [this.#menu()],
      () => ({ ...judged(answer), file: this.name, model: answer.model.name, version: answer.model.version }));
    document.dispatchEvent(new CustomEvent("gourmet:answered",
      { detail: { name: this.name, photo, answer, actions: this.#actions, place: this.#more, below: this.#below } }));
  }

  /** Show a comparison as the answer, with its verdict beside the photo and the panels below. */
  compared(comparison) {
    this.#more.replaceChildren(panels(comparison), h("p", { class: "note" }, comparison.note));
    this.#set("answered", [h("h3", { class: "verdict" }, comparison.verdict)], [this.#menu()]);
  }

  /** Show a caption; unless it is `done`, it is still growing. */
  captioned(caption, { done }) {
    if (!done) return this.#set("busy", [caption.element], [this.#button("cancel")]);
    const [copy, ...others] = caption.actions;
    this.#set("answered", [caption.element], [copy, this.#menu(...others)], () => {
      const { model, ...content } = caption.content;
      return { ...content, model: model.name, version: model.version };
    });
  }

  comparing(text) {
    this.#more.replaceChildren(h("p", { class: "doing", "aria-busy": "true" }, text), pulse());
  }

  /** Show a comparison below the card's answer. */
  showComparison(comparison) {
    this.#more.replaceChildren(h("p", { class: "verdict" }, comparison.verdict), panels(comparison),
      h("p", { class: "note" }, comparison.note));
  }

  comparisonFailed(message) {
    this.#more.replaceChildren(h("p", { class: "doubt" }, message));
  }

  close() {
    URL.revokeObjectURL(this.#address);
    this.element.remove();
  }
}

const pulse = () => h("div", { class: "pulse", "aria-hidden": "true" });
