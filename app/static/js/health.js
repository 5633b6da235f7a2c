// The status above the form, shown while the model cannot answer. It is polled with backoff, and only while
// something is wrong.
import { health } from "./api.js";
import { byId, h, t } from "./ui.js";

const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 15_000;
const BACKOFF = 1.6;
const BACK_SHOWN_MS = 6000;

let state = "ready";
let wasReady = false;
let waitMs = FIRST_WAIT_MS;
let timer = 0;
let asking = null;
const waiting = new Set();

/** Check now; return true if the model can answer. */
export function check() {
  clearTimeout(timer);
  asking ??= look().finally(() => { asking = null; });
  return asking;
}

/** Resolve as soon as the model can answer. */
export function recovered(signal) {
  return new Promise((resolve, reject) => {
    waiting.add(resolve);
    signal.addEventListener("abort", () => {
      waiting.delete(resolve);
      reject(signal.reason);
    }, { once: true });
    check();
  });
}

async function look() {
  let now;
  try {
    now = await health();
  } catch {
    now = { state: "unreachable", message: "" };
  }
  // A worker that has never reached Triton reports a Triton that went away as starting.
  if (now.state === "starting" && wasReady) now.state = "away";
  show(now);
  if (now.state === "ready") {
    wasReady = true;
    waitMs = FIRST_WAIT_MS;
    for (const resolve of waiting) resolve();
    waiting.clear();
    return true;
  }
  timer = setTimeout(check, waitMs);
  waitMs = Math.min(LONGEST_WAIT_MS, waitMs * BACKOFF);
  return false;
}

function show(now) {
  const banner = byId("status");
  const before = state;
  state = now.state;
  if (before === state) return;
  banner.dataset.state = state;
  if (state !== "ready") {
    banner.replaceChildren(h("strong", {}, t(`state_${state}`)), " ", t("state_again"),
      ...(now.message ? [h("small", {}, now.message)] : []));
    return;
  }
  banner.replaceChildren(h("strong", {}, t("state_back")));
  document.dispatchEvent(new Event("gourmet:back"));
  setTimeout(() => { if (state === "ready") banner.replaceChildren(); }, BACK_SHOWN_MS);
}

/** Check now; while something is wrong, check again when the network or the reader returns. */
export function watch() {
  const again = () => { if (state !== "ready" && !document.hidden) { waitMs = FIRST_WAIT_MS; check(); } };
  addEventListener("online", again);
  document.addEventListener("visibilitychange", again);
  check();
}
