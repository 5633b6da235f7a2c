// The lab's models as cards with figures, lines and batches, and as rows of a table.
import { byId, h, percent, svg, t } from "./ui.js";
import { figures, keyOf } from "./lab-stats.js";

export const SHOWN_S = 120;
// The numbers cover the last few steps: numbers of a single step change too fast to read.
const FIGURES_S = 3.5;
const HEIGHT = 30;
const LINES = [["rows_per_s", ""], ["queue_ms", " ms"], ["compute_ms", " ms"], ["batch", ""]];

const number = (value) => value === null ? "–"
  : value >= 100 || value === 0 ? value.toFixed(0) : value.toFixed(value < 10 ? 2 : 1);

const cards = new Map();

/** Show the current history. */
export function show(history) {
  const { at, models } = history.now;
  const worked = (model) => { const { requests, failures } = history.sum(keyOf(model)); return requests + failures > 0; };
  const active = models.filter(worked);
  const idle = models.filter((model) => !active.includes(model));
  const keys = active.map(keyOf);
  const when = t(history.isFull ? "lately" : "so_far");
  for (const [key, card] of cards) {
    if (keys.includes(key)) continue;
    card.element.remove();
    cards.delete(key);
  }
  active.forEach((model, index) => {
    const key = keyOf(model);
    if (!cards.has(key)) {
      cards.set(key, new Card(model));
      byId("models").insertBefore(cards.get(key).element, byId("models").children[index] ?? null);
    }
    cards.get(key).show(history, key, at, when);
  });
  put(byId("quiet"), history.steps.length ? t("nothing", { when }) : t("first"));
  byId("quiet").hidden = active.length > 0;
  byId("scale").hidden = active.length === 0;
  byId("idle").hidden = idle.length === 0 || active.length === 0;
  put(byId("idle"), t("idle", { when, models: idle.map(({ name }) => name).join(", ") }));
  totals(models);
}

/** Show the load of the machine and the configs, which are not in the counts. */
export function showMore({ machine, configs }) {
  replace(byId("machine"), machine.map((use) => h("span", {}, use)), " ");
  replace(byId("configs"), Object.entries(configs).map(([name, config]) => h("div", {}, h("dt", {}, name), h("dd", {}, config))));
}

function replace(shown, children, between = "") {
  if (shown.textContent.replace(/\s+/g, "") === children.map(({ textContent }) => textContent).join("").replace(/\s+/g, "")) return;
  shown.replaceChildren(...children.flatMap((child) => [child, between]));
}

class Card {
  #values = {};
  #lines = {};
  #facts = h("p", { class: "facts" });
  #batches = h("ol", { class: "top sizes" });

  constructor({ name, version }) {
    const title = `model-${name}-${version}`;
    const rows = LINES.map(([figure]) => {
      this.#values[figure] = h("dd", {}, "–");
      this.#lines[figure] = { path: svg("path", {}), scale: h("small", { class: "most" }) };
      const line = svg("svg", { viewBox: `0 0 ${SHOWN_S} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
        this.#lines[figure].path);
      return h("div", { class: figure }, h("dt", {}, ...term(figure, title)), this.#values[figure],
        h("dd", { class: "line", "aria-hidden": "true" }, line, this.#lines[figure].scale));
    });
    this.element = h("li", { class: "model", "aria-labelledby": title },
      h("h3", { id: title }, name, " ", h("span", { class: "tag" }, t("version", { version }))),
      h("dl", {}, ...rows),
      this.#facts,
      h("p", { class: "note" }, t("batches")),
      this.#batches);
  }

  show(history, key, at, when) {
    const lately = history.sum(key, FIGURES_S);
    const all = history.sum(key);
    const shown = figures(lately);
    for (const [figure, unit] of LINES) {
      put(this.#values[figure], shown[figure] === null ? "–" : `${number(shown[figure])}${unit}`);
      const points = history.steps.map((step) => {
        const counted = step.models.get(key);
        return { x: step.at - at + SHOWN_S, from: step.seconds, y: counted ? figures(counted, step.seconds)[figure] : null };
      });
      const maximum = Math.max(...points.map(({ y }) => y ?? 0));
      this.#lines[figure].path.setAttribute("d", drawn(points, maximum));
      put(this.#lines[figure].scale, number(maximum));
    }
    put(this.#facts, t("requests", { rate: number(shown.requests_per_s), count: all.requests, when })
      + (all.failures ? ` ${t("failed", { count: all.failures })}` : ""));
    this.#facts.classList.toggle("failing", all.failures > 0);
    this.#sizes(all);
  }

  /** Show the share of the rows in batches of each size. */
  #sizes({ batches, rows: total }) {
    const sizes = [...batches].filter(([, executions]) => executions > 0).sort(([a], [b]) => a - b);
    while (this.#batches.children.length > sizes.length) this.#batches.lastChild.remove();
    while (this.#batches.children.length < sizes.length) {
      this.#batches.append(h("li", {}, h("span", { class: "name" }),
        svg("svg", { class: "bar", viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("rect", { height: 1 })),
        h("span", { class: "share" })));
    }
    sizes.forEach(([rows, executions], index) => {
      const [name, bar, share] = this.#batches.children[index].children;
      const part = total ? Math.min(1, (rows * executions) / total) : 0;
      put(name, t(rows === 1 ? "alone" : "together", { rows }));
      bar.firstChild.setAttribute("width", (100 * part).toFixed(2));
      put(share, percent(part));
    });
  }
}

/** Return the name of a figure, with a tooltip of its meaning. */
function term(figure, card) {
  const id = `${card}-${figure}`;
  return [h("button", { class: "term", type: "button", "aria-describedby": id }, t(figure)),
    h("span", { class: "meaning", role: "tooltip", id }, t(`means_${figure.replace("_per_s", "")}`))];
}

/** Return a path through the points, with a gap for each missing figure. */
function drawn(points, maximum) {
  let path = "";
  let open = false;
  for (const { x, from, y } of points) {
    if (y === null) {
      open = false;
      continue;
    }
    const height = (HEIGHT - 1.5 - (HEIGHT - 3) * (maximum ? y / maximum : 0)).toFixed(2);
    if (!open) path += `M${(x - from).toFixed(2)} ${height}`;
    path += `L${x.toFixed(2)} ${height}`;
    open = true;
  }
  return path;
}

/** Update the table that the server wrote. */
function totals(models) {
  const table = byId("totals");
  const columns = ["requests", "failures", "rows", "executions"];
  const cells = models.map((model) => {
    const { batch, queue_ms, compute_ms } = figures(model);
    return [...columns.map((column) => String(model[column])), ...[batch, queue_ms, compute_ms].map(number)];
  });
  const names = models.map(({ name, version }) => `${name} ${t("version", { version })}`);
  if (names.join() !== [...table.rows].map((row) => row.cells[0].textContent.trim()).join()) {
    table.replaceChildren(...models.map(({ name, version }, index) => h("tr", {},
      h("th", { scope: "row" }, name, " ", h("span", { class: "tag" }, t("version", { version }))),
      ...cells[index].map(() => h("td")))));
  }
  cells.forEach((row, index) => row.forEach((text, column) => put(table.rows[index].cells[column + 1], text)));
}

/** Set the text only if it differs, so that the reader's selection stays. */
function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
