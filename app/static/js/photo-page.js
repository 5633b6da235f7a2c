// The pages that take photos: each photo becomes a job with a card, and a few are sent at a time.
import * as api from "./api.js";
import { Card, inShort, named } from "./card.js";
import * as cardStore from "./card-store.js";
import * as health from "./health.js";
import { history, remember } from "./history-view.js";
import { modelToAsk, refresh } from "./model-select.js";
import { photoInput } from "./photo-input.js";
import { samples } from "./samples.js";
import { Semaphore } from "./semaphore.js";
import { cropped, shrink } from "./shrink.js";
import { MIDDLE } from "./square.js";
import { byId, percent, say, settings, t, withScript } from "./ui.js";

const AT_A_TIME = 2;
// A restart may be over before anybody notices: then a photo is simply sent again, this often.
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
  shown = ""; // by which the history finds the card of an answer

  /** `onAnswered` is called once, after the first answer. */
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

  /** A job of before the refresh, with the answer that it had. */
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

  /** The file, or what the server shows in place of a format that this browser does not know. */
  get #whole() {
    return this.#sent.shown ? this.#sent.blob : this.file;
  }

  /** What the model is to see: another square of the photo than the middle one is cut out of it. */
  async #seen() {
    return this.#square === MIDDLE ? this.#sent.blob : await cropped(this.#whole, this.#square);
  }

  #look(square) {
    this.#square = square;
    return this.start();
  }

  start() {
    this.shown = "";
    return this.#alone((signal) => this.#ask(signal, 1));
  }

  cancel() {
    this.#abort.abort();
    this.card.failed(t("cancelled"), t("cancelled_hint"));
  }

  /** The focus goes on to the card that takes this one's place, or back to where photos are chosen. */
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

  /** Run `work`, after ending whatever this job was doing. */
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
    say(t(answer.relevant === false ? "spoken_irrelevant" : answer.sure ? "spoken" : "spoken_unsure",
      { file: this.file.name, label: answer.candidates ? inShort(answer) : named(answer), share: percent(answer.probability), subject: settings.subject }));
    this.#keep({ answer, shown: this.shown });
    remember(this.file, photo, answer, this.#sent, this.shown);
  }

  /** On the page of captions: the sentence grows on the card, and is edited there. */
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

  /** On the page that compares: the comparison is the answer. */
  async #compare(signal) {
    this.card.busy(t("comparing"));
    const comparison = await api.compare(this.#sent.blob, this.file.name, signal);
    this.card.compared(comparison);
    say(`${this.file.name}: ${comparison.verdict}`);
    this.#keep({ comparison });
  }

  /** On a card that has its answer already: the comparison is shown under it. */
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

/** Show what belongs to a page with answers, or to one without. */
function tidy() {
  byId("empty").hidden = jobs.size > 0;
  for (const each of document.querySelectorAll(".with-cards")) each.hidden = jobs.size === 0;
  byId("answers-title").classList.toggle("spoken", jobs.size === 0);
}

/** Scroll to `element` unless it is in view; where it does not fit, its beginning is what is shown. */
function bringIntoView(element) {
  const { top, bottom } = element.getBoundingClientRect();
  if (top >= 0 && bottom <= innerHeight) return;
  element.scrollIntoView({ block: "start", behavior: still.matches ? "auto" : "smooth" });
}

/** A function that brings a card into view, unless the reader has scrolled or typed since now. */
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
  cardStore.kept().forEach((entry, place) => {
    const job = Job.restored(entry, -place);
    jobs.add(job);
    byId("cards").append(job.card.element);
  });
  tidy();
}

/** An answer of the history is a card again, as the newest, unless its card is still there. */
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
if (byId("history")) history(reopen);
byId("clear").addEventListener("click", () => {
  for (const job of [...jobs]) job.close();
  tidy();
  byId("file").focus({ preventScroll: true });
  say(t("cleared"));
});
byId("model")?.addEventListener("focus", refresh);
document.addEventListener("gourmet:back", refresh);
// Modules that add to cards listen from their first line on, and they are loaded in the same turn.
addEventListener("DOMContentLoaded", restore);
health.watch();
