// The slider "strict ↔ generous": the threshold at which this page calls an answer sure. The server's own stays.
import { models } from "./api.js";
import { modelToAsk } from "./model-select.js";
import { byId, h, named, percent, settings, t } from "./ui.js";

const slider = byId("strict");
let threshold = null; // null: the threshold of each answer

/** Return what is said of an answer at the chosen threshold; without one, what the server says. */
export function judged(answer) {
  // Cards and histories of earlier versions of this page have no verdict.
  const verdict = answer.verdict ?? { sign: "", colour: "grey", word: "", text: answer.label, kind: "", probability: answer.probability };
  const state = answer.probability >= threshold ? "sure" : "not_sure";
  const isFixed = threshold === null || answer.calibrated === false || answer.labels;
  if (isFixed || state === verdict.state || !["sure", "not_sure"].includes(verdict.state)) return verdict;
  const [sign, colour, word] = settings.marks[state];
  return { ...verdict, state, sign, colour, word, hint: "", ...(verdict.kind ? { kind: named(answer.label) } : { text: named(answer.label) }) };
}

function show(point, own) {
  threshold = point.threshold === own ? null : point.threshold;
  const share = percent(point.threshold);
  slider.setAttribute("aria-valuetext", share);
  byId("strict-note").textContent = t("strict_says",
    { threshold: share, answered: Math.round(100 * point.answered), right: percent(point.right) });
  document.dispatchEvent(new CustomEvent("gourmet:strictness"));
}

/** Offer the measured thresholds of the chosen model; the slider begins at the model's own. */
async function offer() {
  const { models: served } = await models().catch(() => ({ models: [] }));
  const [name, version] = (modelToAsk() || settings.model).split("/");
  const model = served.find((candidate) => candidate.name === name && (!version || candidate.version === version));
  const points = model?.coverage ?? [];
  const own = points.findIndex((point) => point.threshold === model.threshold);
  byId("strictness").hidden = own < 0;
  if (own < 0) {
    threshold = null;
    document.dispatchEvent(new CustomEvent("gourmet:strictness"));
    return;
  }
  slider.max = points.length - 1;
  slider.value = own;
  slider.oninput = () => show(points[slider.value], model.threshold);
  byId("strict-ticks").replaceChildren(...points.map((point) => h("span", {}, (100 * point.threshold).toFixed(0))));
  slider.oninput();
}

if (slider) {
  byId("model")?.addEventListener("change", offer);
  document.addEventListener("gourmet:answered", offer, { once: true });
}
