// "Not right? It is …" on every card that has an answer, where the operator keeps corrections to learn from.
import { correct } from "./api.js";
import { h, icon, say, settings, soft, t } from "./ui.js";

document.addEventListener("gourmet:answered", ({ detail: { name, photo, place } }) => {
  const said = h("p", { class: "note" }, t("correction_note"));
  const button = (label) => {
    const choice = h("button", { class: "button small quiet", type: "button" }, icon(label), ...soft(label));
    choice.addEventListener("click", async () => {
      try {
        await correct(photo, name, label);
        said.textContent = t("correction_kept", { label });
      } catch (error) {
        said.textContent = error.message;
      }
      say(said.textContent);
    });
    return choice;
  };
  place.append(h("details", { class: "correction" }, h("summary", {}, t("correction")),
    h("p", { class: "actions" }, ...settings.labels.map(button)), said));
});
