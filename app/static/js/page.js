// The pages that take photos: each photo becomes a job with a card, a few are sent at a time.
import { classify, Failure } from "./api.js";
import { byId, percent, say, settings, t } from "./base.js";
import { Card } from "./card.js";
import { compare } from "./compare.js";
import * as health from "./health.js";
import { history, remember } from "./history-view.js";
import { intake } from "./intake.js";
import { chosen, refresh } from "./models.js";
import { samples } from "./samples.js";
import { shrink } from "./shrink.js";
import { Slots } from "./slots.js";

const AT_A_TIME = 2;
// A restart may be over before it is asked about: then a photo is simply sent again, this often.
const TRIES = 3;
const PAUSE_MS = 700;

const comparing = settings.mode === "compare";
const slots = new Slots(AT_A_TIME);
const jobs = new Set();
const pause = (forMs) => new Promise((done) => { setTimeout(done, forMs); });

class Job {
  #abort = new AbortController();
  #sent = null;

  constructor(file) {
    this.file = file;
    this.card = new Card(file, {
      cancel: () => this.cancel(),
      again: () => this.start(),
      remove: () => this.remove(),
      compare: () => this.#alone((signal) => compare(this.card.place, this.#sent.blob, file.name, signal)),
    });
  }

  start() {
    return this.#alone((signal) => this.#ask(signal, 1));
  }

  cancel() {
    this.#abort.abort();
    this.card.failed(t("cancelled"), t("cancelled_hint"));
  }

  remove() {
    this.#abort.abort();
    jobs.delete(this);
    this.card.close();
    tidy();
    byId("file").focus({ preventScroll: true });
  }

  /** Whatever this job was doing before is over. */
  async #alone(work) {
    this.#abort.abort();
    this.#abort = new AbortController();
    const { signal } = this.#abort;
    try {
      await work(signal);
    } catch (error) {
      if (signal.aborted) return;
      const known = error instanceof Failure;
      this.card.failed(t(settings.texts[`title_${error.code}`] ? `title_${error.code}` : "title_other"),
        known ? error.message : t("unexpected", { reason: error.message }), error.requestId);
      say(`${this.file.name}: ${error.message}`);
      if (!known) throw error;
    }
  }

  async #ask(signal, attempt) {
    this.card.busy(t("waiting"));
    try {
      await slots.run(() => this.#send(signal), signal);
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
      if (this.#sent.blob.size > settings.max_bytes) throw new Failure("upload_too_large", t("too_large"));
      if (this.#sent.blob !== this.file) this.card.showPhoto(this.#sent.blob);
    }
    const photo = this.#sent.blob;
    this.card.busy(t("asking"));
    if (comparing) {
      const verdict = await compare(this.card.place, photo, this.file.name, signal);
      this.card.compared(verdict);
      say(`${this.file.name}: ${verdict}`);
      return;
    }
    const answer = await classify(photo, this.file.name, chosen(), signal, true);
    this.card.answered(photo, answer, this.#sent);
    say(t(answer.sure ? "spoken" : "spoken_unsure",
      { file: this.file.name, label: answer.label, share: percent(answer.probability) }));
    remember(this.file, photo, answer);
  }
}

/** What is there only while there are answers, or only while there are none. */
function tidy() {
  byId("empty").hidden = jobs.size > 0;
  byId("clear").hidden = jobs.size === 0;
  byId("answers-title").classList.toggle("spoken", jobs.size === 0);
}

function take(files) {
  if (!files.length) return;
  const fresh = files.map((file) => new Job(file));
  for (const job of fresh) jobs.add(job);
  byId("cards").prepend(...fresh.map(({ card }) => card.element));
  tidy();
  for (const job of fresh) job.start();
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  byId("answers").scrollIntoView({ block: "nearest", behavior: still ? "auto" : "smooth" });
}

document.documentElement.classList.add("with-script");
document.documentElement.classList.toggle("with-touch", navigator.maxTouchPoints > 0);
intake(take);
samples(take);
history();
byId("clear").addEventListener("click", () => {
  for (const job of [...jobs]) job.remove();
  say(t("cleared"));
});
byId("model")?.addEventListener("focus", refresh);
document.addEventListener("gourmet:back", refresh);
health.watch();
