// One photo's card: the photo, the progress, and then the answer or the error.
//
// Other modules may add to an answered card: listen for `gourmet:answered` on the document and put a
// button into `event.detail.actions`. `event.detail` also has name, photo, answer, the element `place`,
// which shows one thing at a time, and the element `below`, whose children stay.
import { bytes, h, icon, mark, menu, settings, soft, t } from "./ui.js";
import { ranking, waterfall } from "./charts.js";
import { panels } from "./compare.js";
import { Square } from "./square.js";
import { judged } from "./strictness.js";

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
  #answer = null;
  judge = () => {}; // shows the answer at the reader's threshold

  constructor(file, id, handlers, added = 0) {
    this.name = file.name;
    this.handlers = handlers; // {cancel, again, remove, compare} run on buttons, `look` when the square moves
    this.element = h("li", { class: "card", tabindex: "-1", "aria-label": file.name, "data-id": id, "data-added": String(added) },
      h("figure", { class: "photo" }, this.#picture, this.#button("enlarge", () => this.#enlarge(), "⤢"), h("figcaption", { title: file.name }, file.name)),
      h("div", { class: "result-text" }, this.#body, this.#actions), this.#more, this.#below);
    if (handlers.look) {
      this.square = new Square(this.#picture, this.name, handlers.look);
      this.#picture.after(this.square.element);
    }
    this.#picture.addEventListener("click", () => this.#enlarge());
    this.#picture.addEventListener("load", () => { this.#picture.hidden = false; });
    // Browsers cannot show some formats that the server reads, such as TIFF.
    this.#picture.addEventListener("error", () => { this.#picture.hidden = true; });
    made.set(this.element, this);
    this.showPhoto(file);
  }

  /** Return the row of the table, or null before the photo is answered. */
  get row() {
    return this.#row?.() ?? null;
  }

  get answer() {
    return this.#answer;
  }

  /** Say that another version answers now; an empty text takes it back. */
  outdated(text) {
    this.#below.querySelector(".outdated")?.remove();
    if (text) this.#below.prepend(h("p", { class: "outdated" }, text));
  }

  /** What is said of the answer at the reader's threshold; null if the card shows no answer. */
  get verdict() {
    return this.#answer && judged(this.#answer);
  }

  showPhoto(blob) {
    if (this.#address) URL.revokeObjectURL(this.#address);
    this.#address = URL.createObjectURL(blob);
    this.#picture.src = this.#address;
  }

  /** Show a state of the card; `row` returns its row of the table. */
  #set(state, body, actions, row = null) {
    this.#row = row;
    this.#answer = null;
    this.judge = () => {};
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
    return menu(`${t("more")}: ${this.name}`, ...items, this.#button("again"), this.#button("remove"));
  }

  #button(action, work = this.handlers[action], shown = t(`do_${action}`)) {
    const label = t(`do_${action}`);
    const button = h("button", { class: "button small quiet", type: "button", "data-do": action,
      "aria-label": `${label}: ${this.name}` }, shown);
    button.addEventListener("click", () => work());
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

  /** Show an error; `isFinal`: the same photo would fail again. */
  failed(title, message, requestId = "", isFinal = false) {
    this.#more.replaceChildren();
    this.#below.replaceChildren();
    this.#set("failed", [h("div", { class: "problem" }, h("h3", {}, title), h("p", {}, message),
      requestId ? h("p", { class: "note" }, t("request"), " ", h("code", {}, requestId)) : null)],
    [...(isFinal ? [] : [this.#button("again")]), this.#button("remove")], () => ({ file: this.name, error: `${title}: ${message}` }));
  }

  /** Show what is said above the other parts of an answer. */
  #say(article) {
    const verdict = judged(this.#answer);
    const picture = verdict.probability === undefined ? null : icon(this.#answer.label);
    article.className = `answer ${verdict.state}`;
    article.querySelectorAll("h3, .marked, .hint").forEach((part) => part.remove());
    article.prepend(h("h3", {}, ...(picture ? [picture] : []), h("span", { class: "label" }, ...soft(verdict.text))), mark(verdict),
      ...(verdict.hint ? [h("p", { class: "hint" }, verdict.hint)] : []));
  }

  /** Copy or share the answer. */
  async #share(how) {
    const module = await import("./share.js");
    await module[how](this.name, this.verdict, this.#picture, this.square.at);
  }

  /** Show the photo with its square, and its answer, as large as the screen; closing puts them back. */
  #enlarge() {
    if (this.#picture.closest("dialog")) return;
    const figure = this.#picture.parentNode;
    const close = h("button", { class: "button small quiet", type: "button" }, t("close"));
    const dialog = h("dialog", { class: "large", "aria-label": this.name }, close, figure, this.#body);
    close.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => {
      this.element.prepend(figure);
      this.#actions.before(this.#body);
      dialog.remove();
    });
    document.body.append(dialog);
    dialog.showModal();
  }

  /** Show the answer of one model. */
  answered(photo, answer, sent) {
    this.#more.replaceChildren();
    this.#below.replaceChildren();
    const phases = sent.ms ? [["shrink", sent.ms], ...answer.phases] : answer.phases;
    const size = photo.size < sent.original
      ? t("shrunk", { from: bytes(sent.original), to: bytes(photo.size) }) : t("sent", { size: bytes(sent.original) });
    const time = waterfall(phases, answer, h("span", {}, size));
    if (settings.urls.compare) time.append(this.#button("compare"));
    const article = h("article", {}, ranking(answer.top), time);
    this.#set("answered", [article], [this.#menu(this.#button("copy", () => this.#share("copy")), this.#button("share", () => this.#share("share")))],
      () => ({ ...answer, file: this.name, model: answer.model.name, version: answer.model.version }));
    this.#answer = answer;
    this.judge = () => this.#say(article);
    this.judge();
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
