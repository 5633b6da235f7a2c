// The slider "strict ↔ generous": the threshold at which this page calls an answer sure. The server's own stays.
import { models } from "./api.js";
import { modelToAsk } from "./model-select.js";
import { byId, percent, settings, t } from "./ui.js";

const slider = byId("strict");
let threshold = null; // null: the threshold of each answer

/** Return the answer at the chosen threshold. */
export function judged(answer) {
  if (threshold === null || answer.calibrated === false || answer.labels) return answer;
  const sure = answer.relevant !== false && !answer.doubtful && answer.probability >= threshold;
  return { ...answer, sure, threshold, candidates: sure ? undefined : answer.candidates };
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
  slider.oninput();
}

if (slider) {
  byId("model")?.addEventListener("change", offer);
  document.addEventListener("gourmet:answered", offer, { once: true });
}
