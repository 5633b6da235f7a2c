// A comparison of all ready models on one photo. The server asks the models, so that the photo is uploaded
// once and each model is measured after a warm-up.
import { bytes, h, icon, mark, ms, soft, t } from "./ui.js";

/** Make the panels of a comparison from the answer of `POST /compare`. */
export function panels({ results, default: usual }) {
  const answers = results.filter(({ error }) => !error);
  const votes = new Map();
  for (const row of answers) votes.set(labelOf(row), (votes.get(labelOf(row)) ?? 0) + 1);
  const maxVotes = Math.max(...votes.values());
  return h("ul", { class: "panels" }, ...results.map((row) => {
    const differs = !row.error && votes.size > 1 && votes.get(labelOf(row)) < maxVotes;
    return h("li", { class: differs ? "panel differs" : "panel" },
      h("h4", {}, h("code", {}, ...soft(row.model.name))),
      ...(row.error ? [h("p", { class: "doubt" }, row.error.message)] : answered(row)),
      row.model.name === usual ? h("p", { class: "note" }, h("span", { class: "tag" }, t("default_model"))) : null);
  }));
}

const labelOf = (row) => (row.relevant === false ? row.verdict.word : row.label);

function answered(row) {
  const fact = (word, value) => h("div", {}, h("dt", {}, t(word)), h("dd", {}, value));
  return [
    h("p", { class: "says" }, ...(row.verdict.probability === undefined ? [] : [icon(row.label)].filter(Boolean)), h("b", {}, ...soft(row.verdict.text))),
    mark(row.verdict),
    h("dl", { class: "figures" },
      fact("fact_time", `${ms(row.timings_ms.total)} (${row.spread_ms.map((time) => time.toFixed(0)).join("–")})`),
      fact("fact_triton", ms(row.timings_ms.triton)),
      fact("fact_bytes", bytes(row.bytes_sent)),
      fact("fact_kind", t(`kind_${row.bytes_kind}`)),
      fact("fact_version", row.model.version)),
  ];
}
