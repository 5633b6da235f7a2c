// One photo's card: its picture, what is being done, and then the answer or what went wrong.
//
// Other modules may add to a card that has its answer: listen for `gourmet:answered` on the document
// and put a button into `event.detail.actions`; `event.detail` also has name, photo, answer and place.
import { bytes, h, icon, percent, t } from "./base.js";
import { ranking, waterfall } from "./charts.js";

export class Card {
  #picture = h("img", { alt: "", hidden: true });
  #body = h("div", { class: "body" });
  #actions = h("p", { class: "actions" });
  #more = h("div", { class: "more" });
  #address = "";

  constructor(file, wanted) {
    this.name = file.name;
    this.wanted = wanted; // {cancel, again, remove, compare}: what its buttons do
    this.element = h("li", { class: "card", tabindex: "-1" },
      h("figure", { class: "photo" }, this.#picture, h("figcaption", { title: file.name }, file.name)),
      h("div", { class: "told" }, this.#body, this.#actions), this.#more);
    this.#picture.addEventListener("load", () => { this.#picture.hidden = false; });
    // Some formats that the server reads, such as TIFF, no browser shows.
    this.#picture.addEventListener("error", () => { this.#picture.hidden = true; });
    this.showPhoto(file);
  }

  get place() {
    return this.#more;
  }

  showPhoto(blob) {
    if (this.#address) URL.revokeObjectURL(this.#address);
    this.#address = URL.createObjectURL(blob);
    this.#picture.src = this.#address;
  }

  #set(state, body, actions) {
    this.element.dataset.state = state;
    this.element.setAttribute("aria-busy", String(state === "busy" || state === "held"));
    const hadFocus = this.#actions.contains(document.activeElement);
    this.#body.replaceChildren(...body);
    this.#actions.replaceChildren(...actions);
    if (hadFocus) this.element.focus({ preventScroll: true }); // the button it was on is gone
  }

  #button(action) {
    const label = t(`do_${action}`);
    const button = h("button", { class: "button small quiet", type: "button", "data-do": action,
      "aria-label": `${label}: ${this.name}` }, label);
    button.addEventListener("click", () => this.wanted[action]());
    return button;
  }

  busy(words) {
    this.#set("busy", [h("p", { class: "doing" }, words), h("div", { class: "pulse", "aria-hidden": "true" })],
      [this.#button("cancel")]);
  }

  held(words) {
    this.#set("held", [h("p", { class: "doing" }, words), h("div", { class: "pulse", "aria-hidden": "true" })],
      [this.#button("cancel")]);
  }

  failed(title, message, requestId = "") {
    this.#more.replaceChildren();
    this.#set("failed", [h("div", { class: "problem" }, h("h3", {}, title), h("p", {}, message),
      requestId ? h("p", { class: "note" }, t("request"), " ", h("code", {}, requestId)) : null)],
    [this.#button("again"), this.#button("remove")]);
  }

  /** The answer of one model. */
  answered(photo, answer, sent) {
    this.#more.replaceChildren();
    const phases = sent.ms ? [["shrink", sent.ms], ...answer.phases] : answer.phases;
    const saved = sent.blob.size < sent.original
      ? t("shrunk", { from: bytes(sent.original), to: bytes(sent.blob.size) }) : t("sent", { size: bytes(sent.original) });
    this.#set("answered", [h("article", { class: answer.sure ? "answer" : "answer unsure" },
      h("h3", {}, icon(answer.label),
        h("span", { class: "label" }, answer.sure ? answer.label : t("perhaps", { label: answer.label })),
        h("span", { class: "share" }, percent(answer.probability))),
      answer.sure ? null : h("p", { class: "doubt" }, t("unsure", { threshold: percent(answer.threshold) })),
      ranking(answer.top), waterfall(phases, answer.inside),
      h("p", { class: "facts" }, h("span", {}, t("by"), " ", h("code", {}, answer.model.name), " ",
        t("version", { version: answer.model.version })), h("span", {}, saved)))],
    [this.#button("compare"), this.#button("again"), this.#button("remove")]);
    document.dispatchEvent(new CustomEvent("gourmet:answered",
      { detail: { name: this.name, photo, answer, actions: this.#actions, place: this.#more } }));
  }

  /** A comparison fills the place under the photo by itself; its verdict stands beside the photo. */
  compared(verdict) {
    this.#more.querySelector(".verdict").remove();
    this.#set("answered", [h("h3", { class: "verdict" }, verdict)], [this.#button("again"), this.#button("remove")]);
  }

  close() {
    URL.revokeObjectURL(this.#address);
    this.element.remove();
  }
}
