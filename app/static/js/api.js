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

const PASSING = new Set(["triton_unavailable", "model_not_ready", "triton_busy", "overloaded", "stopping"]);

async function ask(address, options) {
  let response, text;
  try {
    response = await fetch(address, { ...options, headers: { Accept: "application/json" } });
    text = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("unreachable", t("unreachable"), { passes: true });
  }
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    // Not from the app but from something between it and here.
  }
  const problem = body?.error ?? (response.ok ? null : body?.results?.[0]?.error);
  if (problem) {
    throw new Failure(problem.code, problem.message,
      { requestId: problem.request_id, passes: PASSING.has(problem.code) });
  }
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

/** Where the time went, in the order in which it passed: [phase, milliseconds]. */
function phases(server, started, ended, entry) {
  const { total, ...inside } = server;
  const sent = entry?.requestStart || started;
  const answered = entry?.responseStart || ended;
  const end = entry?.responseEnd || ended;
  const known = Object.values(inside).reduce((sum, value) => sum + value, 0);
  return [
    ["connect", sent - (entry?.startTime ?? started)],
    ["upload", answered - sent - total],
    ...Object.entries(inside),
    ["answer", Math.max(0, total - known) + end - answered],
  ].map(([phase, value]) => [phase, Math.max(0, value)]);
}

/** What food is on one photo, by `model` or else by the deployment's default. */
export async function classify(photo, name, model, signal) {
  const address = new URL(settings.urls.classify, location.href);
  if (model) address.searchParams.set("model", model);
  const form = new FormData();
  form.append("file", photo, name);
  const started = performance.now();
  const { results: [result] } = await ask(address, { method: "POST", body: form, signal });
  const ended = performance.now();
  return { ...result, phases: phases(result.timings_ms, started, ended, noted(address.href, started)) };
}

export const models = (signal) => ask(settings.urls.models, { signal });
export const health = () => ask(settings.urls.health, { cache: "no-store" });
