// A short load test from this browser. It uses the API as any client does, so the app's queue, limits and
// keys apply, and nobody can send more with it than with requests of their own.
import { classify } from "./api.js";
import { byId, say, settings, t } from "./ui.js";

const LASTS_MS = 10_000;
const SHOWN_EACH_MS = 250;

let running = null;

async function measure() {
  const mine = running = new AbortController();
  const times = [];
  let failure = null;
  let started = 0;
  const ask = (photo) => classify(photo, "sample", "", mine.signal);
  const show = () => { byId("load-figures").textContent = summary(times, performance.now() - started); };
  const client = async (photo) => {
    while (!mine.signal.aborted) {
      const at = performance.now();
      await ask(photo);
      times.push(performance.now() - at);
    }
  };
  byId("load-go").textContent = t("load_end");
  byId("load-figures").textContent = t("load_warming");
  byId("load-problem").hidden = true;
  let ticking = 0;
  let ends = 0;
  try {
    const photo = await (await fetch(settings.urls.sample, { signal: mine.signal })).blob();
    await ask(photo); // a warm-up, which is not measured
    started = performance.now();
    ticking = setInterval(show, SHOWN_EACH_MS);
    ends = setTimeout(() => mine.abort(), LASTS_MS);
    await Promise.all(Array.from({ length: Number(byId("load-clients").value) }, () => client(photo)));
  } catch (error) {
    if (!mine.signal.aborted) failure = error;
  }
  mine.abort(); // one refusal ends the measurement
  clearInterval(ticking);
  clearTimeout(ends);
  running = null;
  byId("load-go").textContent = t("load_start");
  byId("load-figures").textContent = "";
  if (times.length) show();
  byId("load-problem").hidden = !failure;
  byId("load-problem").textContent = failure?.message ?? "";
  say(failure?.message ?? byId("load-figures").textContent);
}

function summary(times, ms) {
  const ordered = times.toSorted((a, b) => a - b);
  const at = (share) => (ordered.length ? ordered[Math.ceil(share * ordered.length) - 1].toFixed(0) : "–");
  return t("load_figures", {
    seconds: (ms / 1000).toFixed(1), count: times.length, rate: (1000 * times.length / ms).toFixed(1), median: at(0.5), p95: at(0.95),
  });
}

byId("load-go").addEventListener("click", () => { if (running) running.abort(); else measure(); });
addEventListener("pagehide", () => running?.abort());
