// The lab: what Triton counted is asked for every second as long as somebody looks, and more rarely
// while it does not answer.
import { figures } from "./api.js";
import { byId, h, t } from "./base.js";
import { History } from "./lab-counts.js";
import { show, SHOWN_S } from "./lab-view.js";

const EACH_MS = 1000;
const LONGEST_MS = 10_000;
const SLOWER = 1.6;
const PATIENCE_MS = 8000;
const BACK_SHOWN_MS = 6000;

const history = new History(SHOWN_S);
let waitMs = EACH_MS;
let timer = 0;
let asking = false;
let paused = false;
let wrong = null;  // as the reader was told it

async function look() {
  clearTimeout(timer);
  if (asking || paused || document.hidden) return;
  asking = true;
  try {
    history.add(await figures(AbortSignal.timeout(PATIENCE_MS)));
    waitMs = EACH_MS;
    over();
    if (!paused) show(history);
  } catch (error) {
    waitMs = Math.min(LONGEST_MS, waitMs * SLOWER);
    trouble(error);
  } finally {
    asking = false;
    timer = setTimeout(look, waitMs);
  }
}

/** Said once for each reason, however often it is tried again. */
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

document.documentElement.classList.add("with-script");
look();
