// One photo through every model that is ready, side by side.
import { classify, models } from "./api.js";
import { bytes, h, icon, ms, percent, t } from "./base.js";
import { meter } from "./charts.js";

/** Fill `place` with a panel a model, asked one after another so that none slows another; tell the verdict. */
export async function compare(place, photo, name, signal) {
  const listed = await models(signal);
  const verdict = h("p", { class: "verdict" }, t("comparing", { count: listed.models.length }));
  const panels = listed.models.map((model) => h("li", { class: "panel", "aria-busy": "true" },
    h("h4", {}, h("code", {}, model.name)), h("p", { class: "note" }, t("waiting"))));
  place.replaceChildren(verdict, h("ul", { class: "panels" }, ...panels));
  const answers = [];
  for (const [index, model] of listed.models.entries()) {
    try {
      const answer = await classify(photo, name, model.name, signal);
      answers.push(answer);
      panels[index].replaceChildren(...answered(answer, model, listed.default));
    } catch (error) {
      if (error.name === "AbortError") throw error;
      panels[index].replaceChildren(heading(model), h("p", { class: "doubt" }, error.message));
    }
    panels[index].setAttribute("aria-busy", "false");
  }
  verdict.textContent = agreement(answers, listed.models.length);
  mark(panels, answers);
  return verdict.textContent;
}

const heading = (model) => h("h4", {}, h("code", {}, model.name));

function answered(answer, model, usual) {
  const fact = (word, value) => h("div", {}, h("dt", {}, t(word)), h("dd", {}, value));
  return [
    heading(model),
    h("p", { class: "says" }, icon(answer.label), h("b", {}, answer.label),
      h("span", { class: "share" }, percent(answer.probability, 1))),
    meter(answer.probability),
    h("p", { class: "note" }, answer.sure ? t("sure") : t("unsure_short", { threshold: percent(answer.threshold) }),
      model.name === usual ? h("span", { class: "tag" }, t("default")) : null),
    h("dl", { class: "figures" },
      fact("fact_time", ms(answer.timings_ms.total)),
      fact("fact_triton", ms(answer.timings_ms.triton)),
      fact("fact_bytes", bytes(answer.bytes_sent)),
      fact("fact_kind", t(`kind_${model.bytes_kind}`)),
      fact("fact_version", answer.model.version)),
  ];
}

const votes = (answers) => answers.reduce((count, { label }) => count.set(label, (count.get(label) ?? 0) + 1), new Map());

function agreement(answers, asked) {
  if (!answers.length) return t("agree_none");
  const [[label, most]] = [...votes(answers)].sort(([, a], [, b]) => b - a);
  const missing = asked > answers.length ? ` ${t("agree_missing", { count: asked - answers.length })}` : "";
  if (answers.length === 1) return t("agree_one", { label }) + missing;
  if (most === answers.length) return t("agree_all", { count: most, label }) + missing;
  return (most === 1 ? t("agree_split") : t("agree_most", { most, count: answers.length, label })) + missing;
}

/** Those that say otherwise than most are marked. */
function mark(panels, answers) {
  const count = votes(answers);
  const most = Math.max(...count.values());
  for (const panel of panels) {
    const label = panel.querySelector(".says b")?.textContent;
    panel.classList.toggle("differs", Boolean(label) && count.size > 1 && count.get(label) < most);
  }
}
