// The lab page: it polls Triton's statistics every second while the page is visible, with backoff while
// Triton does not answer.
import { figures } from "./api.js";
import { History } from "./lab-stats.js";
import { show, showMore, SHOWN_S } from "./lab-view.js";
import { byId, h, t, withScript } from "./ui.js";

const EACH_MS = 1000;
const LONGEST_MS = 10_000;
const BACKOFF = 1.6;
const TIMEOUT_MS = 8000;
const BACK_SHOWN_MS = 6000;

const history = new History(SHOWN_S);
let waitMs = EACH_MS;
let timer = 0;
let asking = false;
let paused = false;
let wrong = null;  // the message that is shown

async function look() {
  clearTimeout(timer);
  if (asking || paused || document.hidden) return;
  asking = true;
  try {
    const now = await figures(AbortSignal.timeout(TIMEOUT_MS));
    history.add(now);
    if (!paused) showMore(now);
    waitMs = EACH_MS;
    over();
    if (!paused) show(history);
  } catch (error) {
    waitMs = Math.min(LONGEST_MS, waitMs * BACKOFF);
    trouble(error);
  } finally {
    asking = false;
    timer = setTimeout(look, waitMs);
  }
}

/** Announce each reason once, however many polls fail. */
function trouble(error) {
  byId("live").dataset.old = "";
  if (wrong === error.message) return;
  wrong = error.message;
  byId("status").dataset.state = error.code ?? "failed";
  byId("status").replaceChildren(h("strong", {}, t("away")), " ", t("again"), h("small", {}, wrong));
}

function over() {
  delete byId("live").dataset.old;
  if (wrong === null) return;
  wrong = null;
  byId("status").dataset.state = "ready";
  byId("status").replaceChildren(h("strong", {}, t("back")));
  setTimeout(() => { if (wrong === null) byId("status").replaceChildren(); }, BACK_SHOWN_MS);
}

function atOnce() {
  waitMs = EACH_MS;
  look();
}

byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").textContent = t(paused ? "go_on" : "pause");
  if (!paused) atOnce();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) atOnce(); });
addEventListener("online", atOnce);

withScript();
atOnce();
