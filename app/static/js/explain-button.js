// The button "Why this answer?" on every answered card. It loads the module for heat maps on demand.
import { h, t } from "./ui.js";

document.addEventListener("gourmet:answered", ({ detail: { name, photo, answer, actions, place } }) => {
  let asking = null;
  const button = h("button", { class: "button small", type: "button", "data-do": "why",
    "aria-label": `${t("do_why")} ${name}` }, t("do_why"));
  button.addEventListener("click", async () => {
    asking?.abort();
    asking = new AbortController();
    const { heatMap } = await import("./heat-map.js");
    await heatMap({ name, photo, answer, place }, asking);
  });
  actions.prepend(button);
});
