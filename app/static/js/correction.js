// The button "Not right?" on every answered card, if the operator stores corrections.
import { correct } from "./api.js";
import { h, icon, named, percent, say, settings, soft, t } from "./ui.js";

const OTHER = "other"; // the API's label for a photo that shows none of the labels

document.addEventListener("gourmet:answered", ({ detail: { name, photo, answer, actions, below } }) => {
  const note = h("p", { class: "note" }, t("correction_note"));
  const said = h("p", { class: "said", hidden: true }); // what was said of this photo, beside the answer
  const show = (label, words, contradicted) => {
    const undo = h("button", { class: "button small quiet", type: "button", "aria-label": `${t("undo")}: ${words}` }, t("undo"));
    undo.addEventListener("click", () => tell(label, words, true));
    const doubt = contradicted ? t("contradicted", { label: contradicted.label, share: percent(contradicted.probability) }) : "";
    said.replaceChildren(t("you_said", { label: words }), " ", doubt, " ", undo);
    said.classList.toggle("doubt", Boolean(contradicted));
    said.hidden = false;
    return `${t("correction_kept", { label: words })} ${doubt}`;
  };
  const tell = async (label, words, undo = false) => {
    try {
      const { contradicted } = await correct(photo, name, label, { undo });
      said.hidden = undo;
      buttons.hidden = !undo;
      note.textContent = undo ? t("correction_undone") : show(label, words, contradicted);
      opener.focus({ preventScroll: true });
      answer.you_said = undo ? undefined : words;
      document.dispatchEvent(new CustomEvent("gourmet:corrected", { detail: { answer } }));
    } catch (error) {
      note.textContent = error.message;
    }
    say(note.textContent);
  };
  const button = (label, words = named(label)) => {
    const choice = h("button", { class: "button small quiet", type: "button" }, icon(label), ...soft(words));
    choice.addEventListener("click", () => tell(label, words));
    return choice;
  };
  const noneOf = settings.subject && t("irrelevant_short", { subject: settings.subject });
  const none = noneOf ? [button(OTHER, noneOf)] : [];
  const buttons = h("div", {}, h("p", {}, t("correction_is")),
    h("p", { class: "actions" }, ...settings.labels.map((label) => button(label)), ...none));
  const choices = h("div", { class: "correction", role: "group", "aria-label": t("correction_is"), hidden: true },
    buttons, note);
  below.append(said, choices);
  const opener = h("button", { class: "button small quiet", type: "button", "data-do": "teach", "aria-expanded": "false",
    "aria-label": `${t("correction")} ${name}` }, t("correction"));
  opener.addEventListener("click", () => {
    choices.hidden = !choices.hidden && !buttons.hidden;
    buttons.hidden = false;
    opener.setAttribute("aria-expanded", String(!choices.hidden));
  });
  actions.prepend(opener);
  if (answer.you_said) show(settings.labels.find((label) => named(label) === answer.you_said) ?? OTHER, answer.you_said);
});
