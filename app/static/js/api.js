// The app's API as functions. Whatever goes wrong becomes a Failure in words.
import { settings, t } from "./base.js";

export class Failure extends Error {
  /** `passes`: it may be over in a moment, without anybody doing anything about the photo. */
  constructor(code, message, { requestId = "", passes = false } = {}) {
    super(message);
    this.code = code;
    this.requestId = requestId;
    this.passes = passes;
  }
}

const failure = (problem) => new Failure(problem.code, problem.message,
  { requestId: problem.request_id, passes: PASSING.has(problem.code) });

const PASSING = new Set([
  "triton_unavailable", "model_not_ready", "triton_busy", "overloaded", "stopping", "interrupted",
]);

/** What `work` gives, where a network that fails is a Failure too. */
async function reaching(work) {
  try {
    return await work();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("unreachable", t("unreachable"), { passes: true });
  }
}

const request = (address, options) =>
  reaching(() => fetch(address, { ...options, headers: { Accept: "application/json" } }));

async function ask(address, options) {
  const response = await request(address, options);
  return told(response, await reaching(() => response.text()));
}

/** What a whole answer says, or the Failure that it is. */
function told(response, text) {
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    // Not from the app but from something between it and here.
  }
  const problem = body?.error ?? (response.ok ? null : body?.results?.[0]?.error);
  if (problem) throw failure(problem);
  if (body === null || !response.ok) {
    if (response.status === 413) throw new Failure("upload_too_large", t("too_large"));
    throw new Failure("unreachable", t("unreachable"), { passes: true });
  }
  return body;
}

/** What the browser itself noted about the request that began at `started`. */
function noted(address, started) {
  const entries = performance.getEntriesByName(address, "resource");
  if (entries.length > 100) performance.clearResourceTimings();
  return entries.reduce((best, entry) =>
    Math.abs(entry.startTime - started) < Math.abs((best?.startTime ?? Infinity) - started) ? entry : best, null);
}

/** Triton's round trip in its parts, where they are this photo's own: alone with its model. */
function apart(triton, inside) {
  if (inside?.requests !== 1 || inside.queue > triton) return [["triton", triton]];
  // A backend stops its clock a little after it answered.
  const inference = Math.min(inside.compute, triton - inside.queue);
  return [["exchange", triton - inside.queue - inference], ["queue", inside.queue], ["inference", inference]];
}

/** Where the time went, in the order in which it passed: [phase, milliseconds]. */
function phases({ timings_ms: { total, triton, ...before }, inside }, started, ended, entry) {
  const sent = entry?.requestStart || started;
  const answered = entry?.responseStart || ended;
  const end = entry?.responseEnd || ended;
  const known = Object.values(before).reduce((sum, value) => sum + value, triton);
  return [
    ["connect", sent - (entry?.startTime ?? started)],
    ["upload", answered - sent - total],
    ...Object.entries(before),
    ...apart(triton, inside),
    ["answer", Math.max(0, total - known) + end - answered],
  ].map(([phase, value]) => [phase, Math.max(0, value)]);
}

/** What is on one photo, by `model` or else by the deployment's default; `closely`: and what was inside Triton. */
export async function classify(photo, name, model, signal, closely = false) {
  const address = new URL(settings.urls.classify, location.href);
  if (model) address.searchParams.set("model", model);
  if (closely) address.searchParams.set("inside", "1");
  const form = new FormData();
  form.append("file", photo, name);
  const started = performance.now();
  const { results: [result] } = await ask(address, { method: "POST", body: form, signal });
  const ended = performance.now();
  return { ...result, phases: phases(result, started, ended, noted(address.href, started)) };
}

/** The lines of a heat map, as they come: how far it is, and maps that become finer. */
export async function* explain(photo, name, answer, signal) {
  const address = new URL(settings.urls.explain, location.href);
  address.searchParams.set("model", answer.model.name);
  address.searchParams.set("label", answer.label);
  const form = new FormData();
  form.append("file", photo, name);
  const response = await request(address, { method: "POST", body: form, signal });
  if (!response.ok) told(response, await reaching(() => response.text()));
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

export const models = (signal) => ask(settings.urls.models, { signal });
export const health = () => ask(settings.urls.health, { cache: "no-store" });
export const figures = (signal) => ask(settings.urls.figures, { cache: "no-store", signal });
