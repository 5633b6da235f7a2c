// A heat map over the photo, computed region by region: the regions that matter for the answer.
import { explain } from "./api.js";
import { byId, h, percent, say, settings, svg, t } from "./ui.js";
import { Semaphore } from "./semaphore.js";

const LONGEST = 900; // the picture's longer side, in its own pixels
const STRENGTH = 60;
// Covering any region changes an answer by this much.
const NOTHING = 0.05;
const BUSY_PAUSE_MS = 1500;
// Viridis: lightness grows steadily, so that it can be read in grey and by colour-blind people.
const COLOURS = ["#440154", "#482878", "#3e4a89", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];
const RGB = COLOURS.map((colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16)));

// One heat map at a time, as on the server.
const turns = new Semaphore(1);
let panels = 0;

/** Fill `place` with the heat map of `answer`; the AbortController `asking` ends it. */
export async function heatMap({ name, photo, answer, place }, asking) {
  const panel = new Panel(name, answer, () => asking.abort());
  place.replaceChildren(panel.element);
  panel.element.focus({ preventScroll: true });
  panel.element.scrollIntoView({ block: "nearest" });
  const gone = new MutationObserver(() => { if (!panel.element.isConnected) asking.abort(); });
  gone.observe(byId("cards"), { childList: true, subtree: true });
  say(t("why_started"));
  try {
    await panel.load(photo);
    await turns.run(() => filled(panel, photo, asking.signal), asking.signal);
    say(panel.words);
  } catch (error) {
    if (!panel.element.isConnected) return;
    panel.ended(asking.signal.aborted ? null : error);
    say(asking.signal.aborted ? t("why_cancelled") : error.message);
  } finally {
    gone.disconnect();
  }
}

async function filled(panel, photo, signal) {
  for (;;) {
    try {
      for await (const line of explain(photo, panel.name, panel.answer, signal)) panel.take(line);
      return;
    } catch (error) {
      if (error.code !== "overloaded") throw error;
    }
    panel.waiting();
    await new Promise((done) => { setTimeout(done, BUSY_PAUSE_MS); });
    signal.throwIfAborted();
  }
}

class Panel {
  words = "";
  #map = null;
  #photo = null;
  #requests = 0;
  #started = performance.now();
  #canvas = h("canvas", { role: "img", hidden: true });
  #progress = h("progress", { max: 1, value: 0, "aria-label": t("why_started") });
  #doing = h("p", { class: "doing" }, t("why_started"));
  #cancel = h("button", { class: "button small quiet", type: "button" }, t("do_cancel"));
  #under = h("div", { class: "under" });
  #strength = h("input", { type: "range", min: "0", max: "100", value: String(STRENGTH), id: `strength-${panels}` });

  constructor(name, answer, cancel) {
    this.name = name;
    this.answer = answer;
    panels += 1;
    const label = answer.relevant === false ? t("irrelevant_short", { subject: settings.subject }) : answer.label;
    const title = t("why_title", { label });
    this.#cancel.addEventListener("click", cancel);
    this.#strength.addEventListener("input", () => this.#draw());
    this.element = h("section", { class: "why", tabindex: "-1", "aria-label": `${title} ${name}`, "aria-busy": "true" },
      h("h4", {}, title), h("div", { class: "making" }, this.#progress, this.#doing, this.#cancel),
      h("div", { class: "seen" }, this.#canvas, this.#under));
  }

  /** Load the photo; if the browser cannot show its format, the map is drawn on an empty square. */
  async load(photo) {
    this.#photo = await createImageBitmap(photo, { imageOrientation: "from-image" }).catch(() => null);
    const { width, height } = this.#photo ?? { width: 1, height: 1 };
    const scale = LONGEST / Math.max(width, height);
    this.#canvas.width = Math.round(width * scale);
    this.#canvas.height = Math.round(height * scale);
  }

  waiting() {
    this.#doing.textContent = t("why_wait");
  }

  take(line) {
    if (line.kind === "progress") {
      this.#requests = line.done + 1;
      this.#progress.max = line.total;
      this.#progress.value = line.done;
      this.#doing.textContent = t("why_doing", line);
      return;
    }
    this.#map = line;
    this.words = summary(line);
    this.#canvas.setAttribute("aria-label", this.words);
    this.#canvas.hidden = false;
    this.#draw();
    if (line.final) this.#tell(line.grid === 7 ? t("why_no_time") : "");
  }

  /** Show the end of a cancelled or failed heat map; a map that has arrived stays. */
  ended(error) {
    if (this.#map) return this.#tell(error ? t("why_coarse", { reason: error.message }) : "");
    const hadFocus = this.element.contains(document.activeElement);
    this.element.replaceChildren(this.element.firstChild,
      h("p", { class: error ? "doubt" : "note" }, error ? error.message : t("why_cancelled")));
    this.element.setAttribute("aria-busy", "false");
    if (hadFocus) this.element.focus({ preventScroll: true });
  }

  #tell(note) {
    const { model, falls, label } = this.#map;
    const time = `${((performance.now() - this.#started) / 1000).toFixed(1)} s`;
    const hadFocus = this.element.contains(document.activeElement);
    this.element.querySelector(".making").remove();
    this.element.setAttribute("aria-busy", "false");
    const square = this.#canvas.width === this.#canvas.height;
    this.#under.replaceChildren(h("div", {},
      h("p", { class: "summary" }, this.words),
      square ? null : h("p", { class: "note" }, t("why_square")),
      note ? h("p", { class: "note" }, note) : null,
      legend(reach(falls)),
      h("p", { class: "strength" }, h("label", { for: this.#strength.id }, t("why_strength")), this.#strength),
      numbers(falls, label),
      h("p", { class: "note" }, t("why_by", { ...model, count: this.#requests, time }))));
    if (hadFocus) this.element.focus({ preventScroll: true });
  }

  #draw() {
    const { width, height } = this.#canvas;
    const pen = this.#canvas.getContext("2d");
    const side = Math.min(width, height), left = (width - side) / 2, top = (height - side) / 2;
    pen.imageSmoothingQuality = "high";
    pen.fillStyle = "#777";
    pen.fillRect(0, 0, width, height);
    if (this.#photo) pen.drawImage(this.#photo, 0, 0, width, height);
    pen.globalAlpha = this.#strength.value / 100;
    pen.drawImage(coloured(this.#map.falls), left, top, side, side);
    pen.globalAlpha = 1;
    pen.fillStyle = "rgb(0 0 0 / 65%)"; // the parts that the model does not see
    pen.fillRect(0, 0, left, height);
    pen.fillRect(left + side, 0, left, height);
    pen.fillRect(left, 0, side, top);
    pen.fillRect(left, top + side, side, top);
    const strongest = peak(this.#map.falls);
    if (strongest.fall >= NOTHING) outline(pen, this.#map, strongest, left, top, side);
  }
}

/** Outline the cover that lowered the probability most. */
function outline(pen, { grid, cover }, { row, column }, left, top, side) {
  const span = (cell) => [Math.max(0, (cell + 0.5) / grid - cover / 2), Math.min(1, (cell + 0.5) / grid + cover / 2)];
  const [[x0, x1], [y0, y1]] = [span(column), span(row)];
  for (const [colour, width] of [["#000", 7], ["#fff", 3]]) {
    Object.assign(pen, { strokeStyle: colour, lineWidth: width, lineJoin: "round" });
    const inside = 4; // keeps the outline whole at the picture's edge
    pen.strokeRect(left + x0 * side + inside, top + y0 * side + inside, (x1 - x0) * side - 2 * inside, (y1 - y0) * side - 2 * inside);
  }
}

/** Draw the falls as a small picture, one pixel per cell; a rise of the probability counts as zero. */
function coloured(falls) {
  const grid = falls.length, maxFall = reach(falls);
  const image = new ImageData(grid, grid);
  falls.flat().forEach((fall, cell) => image.data.set([...colour(Math.max(0, fall) / maxFall), 255], 4 * cell));
  const canvas = h("canvas", { width: grid, height: grid });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

function colour(share) {
  const at = Math.min(share, 1) * (RGB.length - 1), below = Math.min(Math.floor(at), RGB.length - 2);
  return RGB[below].map((value, channel) => Math.round(value + (RGB[below + 1][channel] - value) * (at - below)));
}

/** Return the fall that has the lightest colour; a map without any effect stays dark. */
const reach = (falls) => Math.max(NOTHING, peak(falls).fall);

const points = (fall) => (100 * Math.abs(fall)).toFixed(0);

function peak(falls, sign = 1) {
  let strongest = { fall: -Infinity };
  falls.forEach((cells, row) => cells.forEach((fall, column) => {
    if (sign * fall > strongest.fall) strongest = { fall: sign * fall, row, column };
  }));
  return strongest;
}

const third = (cell, grid) => Math.floor((3 * (cell + 0.5)) / grid);
const where = ({ row, column }, grid) => t(`where_${3 * third(row, grid) + third(column, grid)}`);

function summary({ falls, grid, label, probability }) {
  const strongest = peak(falls), against = peak(falls, -1);
  const first = strongest.fall < NOTHING
    ? t("why_none", { label, points: points(NOTHING), from: percent(probability) })
    : t("why_most", { where: where(strongest, grid), label, from: percent(probability), to: percent(probability - strongest.fall) });
  if (against.fall < NOTHING) return first;
  return `${first} ${t("why_against", { where: where(against, grid), label, to: percent(probability + against.fall) })}`;
}

function legend(maxFall) {
  const id = `colours-${panels}`;
  const stops = COLOURS.map((value, index) =>
    svg("stop", { offset: index / (COLOURS.length - 1), "stop-color": value }));
  return h("p", { class: "legend" }, h("span", {}, t("why_nothing")),
    svg("svg", { viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("linearGradient", { id }, ...stops), svg("rect", { width: 100, height: 1, fill: `url(#${id})` })),
    h("span", {}, t("why_points", { points: points(maxFall) })));
}

/** Return the means of the picture's ninths, as a table. */
function numbers(falls, label) {
  const grid = falls.length;
  const ninths = Array.from({ length: 9 }, () => []);
  falls.forEach((cells, row) => cells.forEach((fall, column) => ninths[3 * third(row, grid) + third(column, grid)].push(fall)));
  const cell = (values, index) => {
    const mean = values.reduce((sum, fall) => sum + fall, 0) / values.length;
    return h("td", {}, h("small", {}, t(`where_${index}`)), (100 * mean).toFixed(1).replace("-", "−"));
  };
  const cells = ninths.map(cell);
  return h("details", {}, h("summary", {}, t("why_numbers")), h("table", { class: "ninths" },
    h("caption", {}, t("why_caption", { label })),
    h("tbody", {}, ...[0, 3, 6].map((first) => h("tr", {}, ...cells.slice(first, first + 3))))));
}
