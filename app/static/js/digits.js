// A board to draw a digit on. The model reads it while it is drawn: one request at a time, always with the
// latest drawing, and a request with an outdated drawing is aborted. A chosen picture is sent as it is.
import { classify } from "./api.js";
import { shrink } from "./shrink.js";
import { byId, h, ms, percent, say, settings, t, withScript } from "./ui.js";
import * as health from "./health.js";

const BRUSH = 22; // on a board of 280 pixels: like the digits in the training data
const EVERY_MS = 150;
const SAID_AFTER_MS = 800;
const PAUSE_MS = 1000;

const board = byId("board");
const chalk = board.getContext("2d");
const card = byId("answer");
const rows = [...card.querySelectorAll(".ten li")];

let empty = true;
let chosen = null; // the file that the board shows instead of a drawing
let drawing = 0; // the version of the drawing
let sent = 0; // the version of the last request
let question = null;
let timer = 0;
let startedAt = -EVERY_MS;
let speech = 0;

/** Note that the drawing has changed; a complete stroke aborts the request about half of it. */
function changed({ complete = false } = {}) {
  drawing += 1;
  byId("here").hidden = !empty;
  if (!empty) waiting(true);
  if (complete) callOff();
  plan();
}

/** Dim the answer while it belongs to an older drawing. */
function waiting(yes) {
  card.toggleAttribute("data-old", yes && "read" in card.dataset);
  card.setAttribute("aria-busy", String(yes));
}

function callOff() {
  question?.abort();
  question = null;
}

function plan() {
  if (question || timer || empty || sent === drawing) return;
  timer = setTimeout(() => { timer = 0; ask(); }, Math.max(0, startedAt + EVERY_MS - performance.now()));
}

async function ask() {
  if (empty) return;
  const mine = new AbortController();
  question = mine;
  sent = drawing;
  startedAt = performance.now();
  try {
    const picture = chosen ? (await shrink(chosen, mine.signal)).blob
      : await new Promise((done) => { board.toBlob(done, "image/png"); });
    const answer = await classify(picture, chosen?.name ?? "digit.png", "", mine.signal);
    if (!mine.signal.aborted) show(answer);
  } catch (error) {
    if (mine.signal.aborted) return;
    fail(error);
    if (error.passes) {
      await new Promise((done) => { setTimeout(done, PAUSE_MS); });
      await health.recovered(mine.signal).catch(() => {});
      sent = -1; // the drawing still needs an answer
    }
  } finally {
    if (question === mine) question = null;
    plan();
  }
}

function show(answer) {
  const best = answer.class_id;
  card.dataset.read = "";
  waiting(sent !== drawing);
  card.classList.toggle("unsure", !answer.sure);
  byId("problem").hidden = true;
  const none = answer.relevant === false; // no digit
  byId("label").textContent = none ? t("no_digit") : answer.sure ? answer.label : t("perhaps", { label: answer.label });
  byId("share").textContent = none ? "" : percent(answer.probability);
  byId("doubt").hidden = answer.sure;
  byId("doubt").textContent = none ? t("no_digit_hint", { label: answer.label })
    : t("digit_unsure", { threshold: percent(answer.threshold) });
  if (none) bars();
  else bars(answer.probabilities, best);
  const all = answer.phases.reduce((sum, [, value]) => sum + value, 0);
  byId("facts").replaceChildren(
    h("span", {}, t("by"), " ", h("code", {}, answer.model.name), " ", t("version", { version: answer.model.version })),
    h("span", {}, t("digit_time", { time: ms(all), triton: ms(answer.timings_ms.triton) })));
  // Screen readers announce the final answer, not every step on the way.
  clearTimeout(speech);
  speech = setTimeout(() => say(t(none ? "no_digit" : answer.sure ? "digit_spoken" : "digit_spoken_unsure",
    { label: answer.label, share: percent(answer.probability) })), SAID_AFTER_MS);
}

function bars(probabilities, best = -1) {
  rows.forEach((row, digit) => {
    const share = probabilities?.[digit];
    row.classList.toggle("best", digit === best);
    row.querySelector("rect").setAttribute("width", (100 * (share ?? 0)).toFixed(2));
    row.querySelector(".share").textContent = share === undefined ? "–" : percent(share, 1);
  });
}

/** Show an error; a temporary one dims the previous answer, any other one removes it. */
function fail(error) {
  if (!error.passes) forget(t("digit_unread"));
  const title = settings.texts[`title_${error.code}`] ? `title_${error.code}` : "title_other";
  byId("problem").replaceChildren(h("h3", {}, t(title)), h("p", {}, error.message));
  byId("problem").hidden = false;
  say(`${t(title)}: ${error.message}`);
}

function wipe() {
  chalk.fillStyle = "#000";
  chalk.fillRect(0, 0, board.width, board.height);
  empty = true;
  chosen = null;
  byId("file").value = "";
}

function forget(words) {
  clearTimeout(speech);
  delete card.dataset.read;
  waiting(false);
  card.classList.remove("unsure");
  byId("label").textContent = words;
  byId("share").textContent = "";
  byId("doubt").hidden = byId("problem").hidden = true;
  byId("facts").replaceChildren();
  bars();
}

function reset() {
  wipe();
  forget(t("digit_none"));
}

/** Send a picture, and show it on the board if the browser can. */
async function choose(file) {
  wipe();
  chosen = file;
  empty = false;
  changed({ complete: true });
  const bitmap = await createImageBitmap(file, { imageOrientation: "from-image" }).catch(() => null);
  if (!bitmap || chosen !== file) return;
  const scale = Math.min(board.width / bitmap.width, board.height / bitmap.height);
  const [width, height] = [bitmap.width * scale, bitmap.height * scale];
  chalk.drawImage(bitmap, (board.width - width) / 2, (board.height - height) / 2, width, height);
}

/** Return the position of an event in the board's own pixels. */
const at = (event) => {
  const box = board.getBoundingClientRect();
  return [(event.clientX - box.left) * (board.width / box.width), (event.clientY - box.top) * (board.height / box.height)];
};

function pens() {
  let pen = null;
  let last = null;
  const dot = () => {
    chalk.beginPath();
    chalk.arc(...last, BRUSH / 2, 0, 2 * Math.PI);
    chalk.fill();
  };
  const line = (to) => {
    chalk.beginPath();
    chalk.moveTo(...last);
    chalk.lineTo(...to);
    chalk.stroke();
    last = to;
  };
  board.addEventListener("pointerdown", (event) => {
    if (pen !== null || event.button !== 0) return;
    event.preventDefault();
    pen = event.pointerId;
    board.setPointerCapture(pen);
    if (chosen) reset();
    Object.assign(chalk, { lineWidth: BRUSH, lineCap: "round", strokeStyle: "#fff", fillStyle: "#fff" });
    last = at(event);
    dot();
    empty = false;
    changed();
  });
  board.addEventListener("pointermove", (event) => {
    if (event.pointerId !== pen) return;
    const passed = event.getCoalescedEvents?.() ?? [];
    for (const point of passed.length ? passed : [event]) line(at(point));
    changed();
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    board.addEventListener(kind, (event) => {
      if (event.pointerId !== pen) return;
      pen = null;
      changed({ complete: true });
    });
  }
}

withScript();
reset();
pens();
byId("wipe").addEventListener("click", () => {
  reset();
  changed({ complete: true });
  say(t("digit_wiped"));
});
byId("file").addEventListener("change", ({ target: { files: [file] } }) => { if (file) choose(file); });
for (const button of document.querySelectorAll(".drawn button")) {
  button.addEventListener("click", async () => {
    const picture = button.querySelector("img");
    await picture.decode();
    wipe();
    chalk.drawImage(picture, 0, 0, board.width, board.height);
    empty = false;
    changed({ complete: true });
  });
}
health.watch();
