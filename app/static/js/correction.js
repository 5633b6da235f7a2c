// "Not right? It is …" on every card that has an answer, where the operator keeps corrections to learn from.
import { correct } from "./api.js";
import { h, icon, say, settings, soft, t } from "./ui.js";

const OTHER = "other"; // what the API calls a photo that shows none of the labels

document.addEventListener("gourmet:answered", ({ detail: { name, photo, below } }) => {
  const said = h("p", { class: "note" }, t("correction_note"));
  const button = (label, words = label) => {
    const choice = h("button", { class: "button small quiet", type: "button" }, icon(label), ...soft(words));
    choice.addEventListener("click", async () => {
      try {
        await correct(photo, name, label);
        said.textContent = t("correction_kept", { label: words });
      } catch (error) {
        said.textContent = error.message;
      }
      say(said.textContent);
    });
    return choice;
  };
  const none = settings.subject ? [button(OTHER, t("correction_other", { subject: settings.subject }))] : [];
  below.append(h("details", { class: "correction" }, h("summary", {}, t("correction")),
    h("p", { class: "actions" }, ...settings.labels.map((label) => button(label)), ...none), said));
});
