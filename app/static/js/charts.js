// Bars: the probability of each class, and where the time went.
import { h, ms, percent, soft, svg, t } from "./ui.js";

function bar(from, width, kind = "") {
  const rect = svg("rect", { x: from.toFixed(2), width: width.toFixed(2), height: 1 });
  if (kind) rect.setAttribute("class", kind);
  return svg("svg", { class: "bar", viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true" }, rect);
}

export const meter = (share) => bar(0, 100 * share);

/** The most likely classes, best first. */
export const ranking = (top) => h("ol", { class: "top" }, ...top.map(({ label, probability }) =>
  h("li", {}, h("span", { class: "name" }, ...soft(label)), meter(probability),
    h("span", { class: "share" }, percent(probability, 1)))));

/** What the bars cannot show about the time inside Triton. */
function inTriton(phases, inside) {
  if (!phases.some(([phase]) => phase === "triton")) return [];
  if (!(inside?.requests > 1)) return [t("time_triton"), " "];
  return [t("time_shared",
    { requests: inside.requests, queue: ms(inside.queue), compute: ms(inside.compute) }), " "];
}

/** The fold of an answer: [phase, milliseconds] one after another, each where the one above it ends, and the model. */
export function waterfall(phases, { inside, model }, ...facts) {
  const total = phases.reduce((sum, [, value]) => sum + value, 0);
  let passed = 0;
  const rows = phases.map(([phase, value]) => {
    const from = passed;
    passed += value;
    // A phase too short to see still leaves a mark where it happened.
    const width = Math.max(0.8, (100 * value) / total);
    return h("li", {},
      h("span", { class: "name" }, t(`phase_${phase}`)),
      bar(Math.min((100 * from) / total, 99.2), width, `phase-${phase}`),
      h("span", { class: "share" }, ms(value)));
  });
  return h("details", { class: "time" },
    h("summary", {}, h("span", {}, t("time_all", { time: ms(total) }), " ", h("code", {}, ...soft(model.name)))),
    h("ol", { class: "waterfall" }, ...rows),
    h("p", { class: "note" }, ...inTriton(phases, inside), t("time_note")),
    h("p", { class: "facts" }, h("span", {}, t("by"), " ", h("code", {}, ...soft(model.name)), " ",
      t("version", { version: model.version })), ...facts));
}
