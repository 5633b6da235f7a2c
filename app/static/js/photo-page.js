// The pages that take photos: each photo becomes a job with a card, and a few are sent at a time.
import * as api from "./api.js";
import { Card } from "./card.js";
import * as cardStore from "./card-store.js";
import * as health from "./health.js";
import { corrected, history, remember } from "./history-view.js";
import { modelToAsk, refresh } from "./model-select.js";
import { photoInput } from "./photo-input.js";
import { samples } from "./samples.js";
import { Semaphore } from "./semaphore.js";
import { cropped, shrink } from "./shrink.js";
import { MIDDLE } from "./square.js";
import { byId, inWords, say, settings, t, withScript } from "./ui.js";

const AT_A_TIME = 2;
// A server restart may be short, so a photo is sent up to this often.
const TRIES = 3;
const PAUSE_MS = 700;

const comparing = settings.mode === "compare";
const captioning = settings.mode === "caption";
const sending = new Semaphore(AT_A_TIME);
const jobs = new Set();
const unique = () => `${Date.now()}-${Math.random()}`;
const pause = (forMs) => new Promise((done) => { setTimeout(done, forMs); });
const still = matchMedia("(prefers-reduced-motion: reduce)");

class Job {
  static #count = 0;
  #abort = new AbortController();
  #sent = null;
  #square = MIDDLE;
  #onAnswered;
  shown = ""; // identifies the card of an answer for the history

  /** Make a job with its card; `onAnswered` is called once, after the first answer. */
  constructor(file, { id = unique(), sent = null, onAnswered = null, added = null } = {}) {
    this.id = id;
    this.file = file;
    this.#sent = sent;
    this.#onAnswered = onAnswered;
    this.card = new Card(file, id, {
      cancel: () => this.cancel(),
      again: () => this.start(),
      remove: () => this.remove(),
      compare: () => this.#alone((signal) => this.#compareHere(signal)),
      ...(comparing || captioning ? {} : { look: (square) => this.#look(square) }),
    }, added ?? (Job.#count += 1));
  }

  /** Restore a job from before the refresh, with its answer. */
  static restored({ id, name, blob, answer, comparison, caption, ms, original, shown = "", square = MIDDLE }, added = null) {
    const job = new Job(new File([blob], name, { type: blob.type }), { id, sent: { blob, ms, original }, added });
    job.shown = shown;
    if (caption) job.#captioned(caption);
    else if (comparison) job.card.compared(comparison);
    else {
      job.#square = job.card.square.at = square;
      job.#seen().then((photo) => job.card.answered(photo, answer, job.#sent));
    }
    return job;
  }

  /** The file, or the server's JPEG of it if this browser does not know the format. */
  get #whole() {
    return this.#sent.shown ? this.#sent.blob : this.file;
  }

  /** Return the picture for the model; a square other than the middle one is cropped here. */
  async #seen() {
    return this.#square === MIDDLE ? this.#sent.seen ?? this.#sent.blob : await cropped(this.#whole, this.#square);
  }

  #look(square) {
    this.#square = square;
    return this.start();
  }

  start() {
    this.shown = "";
    return this.#alone((signal) => this.#ask(signal, 1));
  }

  /** Store that the reader corrected the answer. */
  corrected() {
    this.#keep({ answer: this.card.answer, shown: this.shown });
    corrected(this.shown, this.card.answer);
  }

  cancel() {
    this.#abort.abort();
    this.card.failed(t("cancelled"), t("cancelled_hint"));
  }

  /** Remove the card, and focus the next card or the input for photos. */
  remove() {
    const { nextElementSibling: next, previousElementSibling: before } = this.card.element;
    this.close();
    tidy();
    (next ?? before ?? byId("file")).focus({ preventScroll: true });
  }

  close() {
    this.#abort.abort();
    jobs.delete(this);
    cardStore.drop(this.id);
    this.card.close();
  }

  /** Run `work` after aborting the job's current work. */
  async #alone(work) {
    this.#abort.abort();
    this.#abort = new AbortController();
    const { signal } = this.#abort;
    try {
      await work(signal);
    } catch (error) {
      if (signal.aborted) return;
      const known = error instanceof api.Failure;
      this.card.failed(t(settings.texts[`title_${error.code}`] ? `title_${error.code}` : "title_other"),
        known ? error.message : t("unexpected", { reason: error.message }), error.requestId, error.isFinal);
      say(`${this.file.name}: ${error.message}`);
      if (!known) throw error;
    }
  }

  async #ask(signal, attempt) {
    this.card.busy(t("waiting"));
    try {
      await sending.run(() => this.#send(signal), signal);
    } catch (error) {
      if (!error.passes || signal.aborted || attempt >= TRIES) throw error;
      this.card.held(t("held"));
      say(t("held"));
      if (await health.check()) await pause(PAUSE_MS);
      else {
        attempt = 0;
        await health.recovered(signal);
      }
      signal.throwIfAborted();
      await this.#ask(signal, attempt + 1);
    }
  }

  async #send(signal) {
    if (!this.#sent) {
      this.card.busy(t("preparing"));
      this.#sent = { ...(await shrink(this.file, signal)), original: this.file.size };
      signal.throwIfAborted();
      if (this.#sent.blob.size > settings.max_bytes) throw new api.Failure("upload_too_large", t("too_large"), { isFinal: true });
      if (this.#sent.blob !== this.file) this.card.showPhoto(this.#sent.blob);
    }
    if (captioning) await this.#caption(signal);
    else if (comparing) await this.#compare(signal);
    else await this.#classify(signal);
    this.#onAnswered?.(this.card);
    this.#onAnswered = null;
  }

  async #classify(signal) {
    const photo = await this.#seen();
    signal.throwIfAborted();
    this.card.busy(t("asking"));
    const answer = await api.classify(photo, this.file.name, modelToAsk(), signal, true);
    this.card.answered(photo, answer, this.#sent);
    this.shown = unique();
    say(`${this.file.name}: ${inWords(answer.verdict)}`);
    this.#keep({ answer, shown: this.shown });
    remember(this.file, photo, answer, this.#sent, this.shown);
  }

  /** Ask for a caption, which grows on the card and can be edited there. */
  async #caption(signal) {
    const caption = await this.#captioned();
    await caption.ask(signal, this.#sent.ms);
    this.card.captioned(caption, { done: true });
    say(`${this.file.name}: ${caption.content.text}`);
    this.#keep({ caption: caption.content });
  }

  async #captioned(content = null) {
    const { Caption } = await import("./caption-card.js");
    const name = content?.file || this.file.webkitRelativePath || this.file.name;
    const caption = new Caption(name, this.#sent.blob, () => this.#keep({ caption: caption.content }));
    if (content) caption.show(content);
    this.card.captioned(caption, { done: content !== null });
    return caption;
  }

  /** Compare the models; on the compare page, the comparison is the answer. */
  async #compare(signal) {
    this.card.busy(t("comparing"));
    const comparison = await api.compare(await this.#seen(), this.file.name, signal);
    this.card.compared(comparison);
    say(`${this.file.name}: ${comparison.verdict}`);
    this.#keep({ comparison });
  }

  /** Compare the models on an answered card, and show the comparison under the answer. */
  async #compareHere(signal) {
    this.card.comparing(t("comparing"));
    try {
      const comparison = await api.compare(await this.#seen(), this.file.name, signal);
      this.card.showComparison(comparison);
      say(`${this.file.name}: ${comparison.verdict}`);
    } catch (error) {
      if (signal.aborted || !(error instanceof api.Failure)) throw error;
      this.card.comparisonFailed(error.message);
      say(error.message);
    }
  }

  #keep(answer) {
    const { blob, ms, original } = this.#sent;
    const order = [...byId("cards").children].map((card) => card.dataset.id);
    const square = this.#square === MIDDLE ? undefined : this.#square;
    cardStore.keep(this.id, { name: this.file.name, blob, ms, original, square, ...answer }, order);
  }
}

/** Show the parts of a page with answers, or of a page without them. */
function tidy() {
  byId("empty").hidden = jobs.size > 0;
  for (const part of document.querySelectorAll(".with-cards")) part.hidden = jobs.size === 0;
  byId("answers-title").classList.toggle("spoken", jobs.size === 0);
}

/** Scroll to `element` unless it is in view; show its beginning if it does not fit. */
function bringIntoView(element) {
  const { top, bottom } = element.getBoundingClientRect();
  if (top >= 0 && bottom <= innerHeight) return;
  element.scrollIntoView({ block: "start", behavior: still.matches ? "auto" : "smooth" });
}

/** Return a function that brings a card into view, unless the reader scrolls or types before. */
function following() {
  const moved = new AbortController();
  for (const kind of ["wheel", "touchmove", "keydown"]) {
    addEventListener(kind, () => moved.abort(), { signal: moved.signal, passive: true });
  }
  return (card) => {
    if (!moved.signal.aborted) bringIntoView(card.element);
    moved.abort();
  };
}

function take(files) {
  if (!files.length) return;
  const onAnswered = files.length === 1 ? following() : null;
  const added = [...files].reverse().map((file) => new Job(file, { onAnswered })).reverse();
  for (const job of added) jobs.add(job);
  byId("cards").prepend(...added.map(({ card }) => card.element));
  tidy();
  for (const job of added) job.start();
  byId("answers").scrollIntoView({ block: "nearest", behavior: still.matches ? "auto" : "smooth" });
}

function restore() {
  cardStore.kept().forEach((entry, index) => {
    const job = Job.restored(entry, -index);
    jobs.add(job);
    byId("cards").append(job.card.element);
  });
  tidy();
}

/** Show an answer of the history as the newest card, unless its card is still on the page. */
function reopen(entry) {
  let job = [...jobs].find(({ shown }) => shown && shown === entry.shown);
  if (!job) {
    job = Job.restored(entry);
    jobs.add(job);
    byId("cards").prepend(job.card.element);
    tidy();
  }
  bringIntoView(job.card.element);
  job.card.element.focus({ preventScroll: true });
}

withScript();
photoInput(take);
samples(take);
byId("point")?.addEventListener("click", async () => (await import("./camera.js")).camera(take));
if (byId("history")) history(reopen);
byId("clear").addEventListener("click", () => {
  for (const job of [...jobs]) job.close();
  tidy();
  byId("file").focus({ preventScroll: true });
  say(t("cleared"));
});
document.addEventListener("gourmet:corrected", ({ detail: { answer } }) =>
  [...jobs].find(({ card }) => card.answer === answer)?.corrected());
/** Mark the cards that another version of the model answered. */
document.addEventListener("gourmet:version", ({ detail: version }) => {
  const isOld = ({ card: { answer } }) => answer?.model.name === settings.model && answer.model.version !== version;
  const button = byId("again-all");
  button.hidden = ![...jobs].some(isOld);
  for (const job of jobs) job.card.outdated(isOld(job) ? t("outdated", { version: job.card.answer.model.version }) : "");
  button.onclick = () => {
    button.hidden = true;
    for (const job of jobs) if (isOld(job)) job.start();
  };
});
byId("model")?.addEventListener("focus", refresh);
document.addEventListener("gourmet:back", refresh);
// Wait until the modules that add to cards are loaded and listen.
addEventListener("DOMContentLoaded", restore);
health.watch();
