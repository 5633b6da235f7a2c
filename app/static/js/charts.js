// Bars: the probability of each class, and the time of each phase.
import { h, ms, percent, soft, svg, t } from "./ui.js";

function bar(from, width, kind = "") {
  const rect = svg("rect", { x: from.toFixed(2), width: width.toFixed(2), height: 1 });
  if (kind) rect.setAttribute("class", kind);
  return svg("svg", { class: "bar", viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true" }, rect);
}

/** Draw the most likely classes, best first. */
export const ranking = (top) => h("ol", { class: "top" }, ...top.map(({ label, probability }) =>
  h("li", {}, h("span", { class: "name" }, ...soft(label)), bar(0, 100 * probability),
    h("span", { class: "share" }, percent(probability, 1)))));

/** Describe the time inside Triton in words, beside the bars. */
function inTriton(phases, inside) {
  if (!phases.some(([phase]) => phase === "triton")) return [];
  if (!(inside?.requests > 1)) return [t("time_triton"), " "];
  return [t("time_shared",
    { requests: inside.requests, queue: ms(inside.queue), compute: ms(inside.compute) }), " "];
}

/** Draw the phases of an answer as bars, each of which starts at the end of the one before, and the model. */
export function waterfall(phases, { inside, model }, ...facts) {
  const total = phases.reduce((sum, [, value]) => sum + value, 0);
  let passed = 0;
  const rows = phases.map(([phase, value]) => {
    const from = passed;
    passed += value;
    // A very short phase still leaves a visible mark.
    const width = Math.max(0.8, (100 * value) / total);
    return h("li", {},
      h("span", { class: "name" }, t(`phase_${phase}`)),
      bar(Math.min((100 * from) / total, 99.2), width, `phase-${phase}`),
      h("span", { class: "share" }, ms(value)));
  });
  return h("details", { class: "time" },
    h("summary", {}, t("engineers")),
    h("p", {}, t("time_all", { time: ms(total) })),
    h("ol", { class: "waterfall" }, ...rows),
    h("p", { class: "note" }, ...inTriton(phases, inside), t("time_note")),
    h("p", { class: "facts" }, h("span", {}, t("by"), " ", h("code", {}, ...soft(model.name)), " ",
      t("version", { version: model.version })), ...facts));
}
