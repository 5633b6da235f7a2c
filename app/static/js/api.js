// The app's API as functions. Anything that goes wrong becomes a Failure with a message for people.
import { settings, t } from "./ui.js";

export class Failure extends Error {
  /**
   * `passes`: a retry may succeed soon; `isFinal`: the same request would be refused again.
   */
  constructor(code, message, { requestId = "", passes = false, isFinal = false } = {}) {
    super(message);
    this.code = code;
    this.requestId = requestId;
    this.passes = passes;
    this.isFinal = isFinal;
  }
}

const failure = (problem, status) => new Failure(problem.code, problem.message,
  { requestId: problem.request_id, passes: PASSING.has(problem.code), isFinal: FINAL.has(status) });

const RECONNECT_MS = 400;
const PASSING = new Set([
  "triton_unavailable", "model_not_ready", "triton_busy", "overloaded", "nobody_there",
]);
// Errors of the request itself.
const FINAL = new Set([400, 413, 415]);

/** Return the result of `work`; turn a failed connection into a Failure. */
export async function reaching(work) {
  try {
    return await work();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("unreachable", t("unreachable"), { passes: true });
  }
}

const request = (address, options) =>
  reaching(() => fetch(address, { ...options, headers: { Accept: "application/json", "X-Requested-With": "fetch" } }));

/** Retry once: a killed server process resets its connections, and another one takes over. */
async function onceAgain(work, signal) {
  try {
    return await work();
  } catch (error) {
    if (error.code !== "unreachable" || signal?.aborted) throw error;
    await new Promise((done) => { setTimeout(done, RECONNECT_MS); });
    signal?.throwIfAborted();
    return work();
  }
}

const ask = (address, options) => onceAgain(async () => {
  const response = await request(address, options);
  return parsed(response, await reaching(() => response.text()));
}, options.signal);

/** Return the JSON of a response; throw a Failure for an error response. */
function parsed(response, text) {
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    // The response comes from a proxy between the app and this page.
  }
  const problem = body?.error ?? (response.ok ? null : body?.results?.[0]?.error);
  if (problem) throw failure(problem, response.status);
  if (body === null || !response.ok) {
    if (response.status === 413) throw new Failure("upload_too_large", t("too_large"), { isFinal: true });
    throw new Failure("unreachable", t("unreachable"), { passes: true });
  }
  return body;
}

/** Make the Failure of an error response, an error event, or an interrupted stream. */
export async function failed(what) {
  if (what instanceof Response) {
    try {
      parsed(what, await what.text());
    } catch (error) {
      return error;
    }
  }
  return what?.error ? failure(what.error) : new Failure("unreachable", t("unreachable"), { passes: true });
}

/** Return the browser's own timing of the request that began at `started`. */
function resourceTiming(address, started) {
  const entries = performance.getEntriesByName(address, "resource");
  if (entries.length > 100) performance.clearResourceTimings();
  return entries.reduce((best, entry) =>
    Math.abs(entry.startTime - started) < Math.abs((best?.startTime ?? Infinity) - started) ? entry : best, null);
}

/** Return the parts of Triton's round trip, if they belong to this photo alone. */
function tritonPhases(triton, inside) {
  if (inside?.requests !== 1 || inside.queue > triton) return [["triton", triton]];
  // A backend stops its clock slightly after its answer.
  const inference = Math.min(inside.compute, triton - inside.queue);
  return [["exchange", triton - inside.queue - inference], ["queue", inside.queue], ["inference", inference]];
}

/** Return the phases of the request in order, as [phase, milliseconds]. */
function phases({ timings_ms: { total, triton, ...before }, inside }, started, ended, entry) {
  const sent = entry?.requestStart || started;
  const answered = entry?.responseStart || ended;
  const end = entry?.responseEnd || ended;
  const known = Object.values(before).reduce((sum, value) => sum + value, triton);
  return [
    ["connect", sent - (entry?.startTime ?? started)],
    ["upload", answered - sent - total],
    ...Object.entries(before),
    ...tritonPhases(triton, inside),
    ["answer", Math.max(0, total - known) + end - answered],
  ].map(([phase, value]) => [phase, Math.max(0, value)]);
}

/** Make the arguments of a request with a photo; parameters without a value are left out. */
function withPhoto(url, photo, name, signal, parameters = {}) {
  const address = new URL(url, location.href);
  for (const [key, value] of Object.entries(parameters)) if (value) address.searchParams.set(key, value);
  const body = new FormData();
  body.append("file", photo, name);
  return [address, { method: "POST", body, signal }];
}

/** Classify a photo with `model` or the default model; `inside` adds the times inside Triton. */
export async function classify(photo, name, model, signal, inside = false) {
  const [address, options] = withPhoto(settings.urls.classify, photo, name, signal, { model, inside: inside && "1" });
  const started = performance.now();
  const { results: [result] } = await ask(address, options);
  const ended = performance.now();
  return { ...result, asked: model, phases: phases(result, started, ended, resourceTiming(address.href, started)) };
}

/** Send the server the label that a photo really shows; with `undo`, have it forget the photo. */
export const correct = (photo, name, label, { undo = false } = {}) =>
  ask(...withPhoto(settings.urls.corrections, photo, name, undefined, { label, system: settings.system, undo: undo && "1" }));

/** Return a photo whose format this browser cannot show as a JPEG. */
export const thumbnail = (photo, name, signal) => onceAgain(async () => {
  const response = await request(...withPhoto(settings.urls.thumbnail, photo, name, signal));
  return response.ok ? response.blob() : parsed(response, await reaching(() => response.text()));
}, signal);

/** Return the answers of all ready models: {verdict, default, results}. */
export const compare = (photo, name, signal) => ask(...withPhoto(settings.urls.compare, photo, name, signal));

/** Yield the lines of a heat map as they arrive: progress, and maps that become finer. */
export async function* explain(photo, name, answer, signal) {
  const label = answer.relevant === false ? "" : answer.label; // without a label: "not food"
  const sent = withPhoto(settings.urls.explain, photo, name, signal, { model: answer.asked || answer.model.name, label });
  const response = await onceAgain(() => request(...sent), signal);
  if (!response.ok) parsed(response, await reaching(() => response.text()));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reaching(() => reader.read());
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines.map((text) => JSON.parse(text))) {
      if (line.error) throw failure(line.error);
      yield line;
    }
  }
}

/** Return a caption of the photo, made with these options. */
export const caption = async (photo, name, options, signal) =>
  (await ask(...withPhoto(settings.urls.caption, photo, name, signal, options))).results[0];

export const models = (signal) => ask(settings.urls.models, { signal });
export const health = (address = settings.urls.health) => ask(address, { cache: "no-store" });

export const figures = (signal) => ask(settings.urls.figures, { cache: "no-store", signal });
