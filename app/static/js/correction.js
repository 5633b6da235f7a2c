// The button "Not right?" on every answered card, if the operator stores corrections.
import { correct } from "./api.js";
import { h, icon, say, settings, soft, t } from "./ui.js";

const OTHER = "other"; // the API's label for a photo that shows none of the labels

document.addEventListener("gourmet:answered", ({ detail: { name, photo, actions, below } }) => {
  const note = h("p", { class: "note" }, t("correction_note"));
  const button = (label, words = label) => {
    const choice = h("button", { class: "button small quiet", type: "button" }, icon(label), ...soft(words));
    choice.addEventListener("click", async () => {
      try {
        await correct(photo, name, label);
        buttons.hidden = true;
        opener.focus({ preventScroll: true });
        note.textContent = t("correction_kept", { label: words });
        document.dispatchEvent(new Event("gourmet:corrected"));
      } catch (error) {
        note.textContent = error.message;
      }
      say(note.textContent);
    });
    return choice;
  };
  const none = settings.subject ? [button(OTHER, t("irrelevant_short", { subject: settings.subject }))] : [];
  const buttons = h("div", {}, h("p", {}, t("correction_is")),
    h("p", { class: "actions" }, ...settings.labels.map((label) => button(label)), ...none));
  const choices = h("div", { class: "correction", role: "group", "aria-label": t("correction_is"), hidden: true },
    buttons, note);
  below.append(choices);
  const opener = h("button", { class: "button small quiet", type: "button", "data-do": "teach", "aria-expanded": "false",
    "aria-label": `${t("correction")} ${name}` }, t("correction"));
  opener.addEventListener("click", () => {
    choices.hidden = !choices.hidden && !buttons.hidden;
    buttons.hidden = false;
    opener.setAttribute("aria-expanded", String(!choices.hidden));
  });
  actions.prepend(opener);
});
