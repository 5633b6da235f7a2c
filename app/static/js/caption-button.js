// "Describe" on every card that has an answer, where a captioner answers. What it shows is loaded on demand.
import { Failure, health } from "./api.js";
import { h, say, settings, t } from "./ui.js";

let served = null;

document.addEventListener("gourmet:answered", async ({ detail: { name, photo, actions, place } }) => {
  served ??= health(settings.urls.captioner).catch(() => ({ ready: false }));
  if (!(await served).ready) return;
  let asking = null;
  const button = h("button", { class: "button small quiet", type: "button", "data-do": "describe",
    "aria-label": `${t("do_describe")}: ${name}` }, t("do_describe"));
  button.addEventListener("click", async () => {
    asking?.abort();
    const { signal } = asking = new AbortController();
    const { Caption } = await import("./caption-card.js");
    const caption = new Caption(name, photo);
    place.replaceChildren(caption.element);
    try {
      await caption.ask(signal);
      say(`${name}: ${caption.content.text}`);
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Failure)) throw error;
      place.replaceChildren(h("p", { class: "doubt" }, error.message));
      say(error.message);
    }
  });
  actions.querySelector("[data-do=compare]")?.before(button); // it is gone where the card is asked again
});
