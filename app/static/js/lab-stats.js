// Differences between two readings of Triton's counters, per second, per request and per batch.
const COUNTS = ["requests", "failures", "rows", "executions", "queue_ms", "compute_ms"];
// In a longer gap, the time of an event is unknown.
const LONGEST_STEP_S = 30;

/** The last minutes as steps; a step holds the counts of each model. */
export class History {
  #keepS;
  #last = null;
  steps = [];
  isFull = false;

  constructor(keepS) {
    this.#keepS = keepS;
  }

  /** Add a reading: `look` has the models' counters and the time of the reading in seconds. */
  add(look) {
    const before = this.#last;
    // Another server process may answer with an earlier reading, and a reading may arrive twice.
    if (before && look.at <= before.at) return;
    this.#last = look;
    const kept = this.steps.filter(({ at }) => at > look.at - this.#keepS);
    this.isFull ||= kept.length < this.steps.length;
    this.steps = kept;
    if (!before || look.at - before.at > LONGEST_STEP_S) return;
    const known = new Map(before.models.map((model) => [keyOf(model), model]));
    const models = new Map(look.models.map((model) => [keyOf(model), difference(model, known.get(keyOf(model)))]));
    this.steps.push({ at: look.at, seconds: look.at - before.at, models });
  }

  get now() {
    return this.#last;
  }

  /** Return the sums of a model's counts in the last seconds. */
  sum(key, seconds = Infinity) {
    const total = { ...Object.fromEntries(COUNTS.map((count) => [count, 0])), seconds: 0, batches: new Map() };
    for (const step of this.steps) {
      const counted = step.models.get(key);
      if (!counted || step.at <= this.#last.at - seconds) continue;
      total.seconds += step.seconds;
      for (const count of COUNTS) total[count] += counted[count];
      for (const [rows, executions] of counted.batches) {
        total.batches.set(rows, (total.batches.get(rows) ?? 0) + executions);
      }
    }
    return total;
  }
}

export const keyOf = ({ name, version }) => `${name} ${version}`;

/** Return rates and means of such sums; null without requests. */
export const figures = (counted, seconds = counted.seconds) => ({
  rows_per_s: seconds ? counted.rows / seconds : null,
  requests_per_s: seconds ? counted.requests / seconds : null,
  queue_ms: counted.requests ? counted.queue_ms / counted.requests : null,
  compute_ms: counted.requests ? counted.compute_ms / counted.requests : null,
  batch: counted.executions ? counted.rows / counted.executions : null,
});

function difference(now, before) {
  // A reloaded model counts from zero again.
  const from = before && COUNTS.every((count) => now[count] >= before[count]) ? before : null;
  const were = new Map(from?.batches.map(({ rows, executions }) => [rows, executions]));
  return {
    ...Object.fromEntries(COUNTS.map((count) => [count, now[count] - (from?.[count] ?? 0)])),
    batches: new Map(now.batches.map(({ rows, executions }) => [rows, executions - (were.get(rows) ?? 0)])),
  };
}
