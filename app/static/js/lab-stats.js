// Differences between two readings of Triton's counters, per second, per request and per batch.
const COUNTS = ["requests", "failures", "rows", "executions", "queue_ms", "compute_ms"];
// Within a longer gap it is unknown when something happened.
const LONGEST_STEP_S = 30;

/** The last minutes, step by step; a step holds what each model did in it. */
export class History {
  #keepS;
  #last = null;
  steps = [];
  isFull = false;

  constructor(keepS) {
    this.#keepS = keepS;
  }

  /** `look`: the models' counters and the time, in seconds, at which they were read. */
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

  /** The sums of what a model did in the last seconds. */
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

/** Rates and means of those sums; null where nothing happened. */
export const figures = (counted, seconds = counted.seconds) => ({
  rows_per_s: seconds ? counted.rows / seconds : null,
  requests_per_s: seconds ? counted.requests / seconds : null,
  queue_ms: counted.requests ? counted.queue_ms / counted.requests : null,
  compute_ms: counted.requests ? counted.compute_ms / counted.requests : null,
  batch: counted.executions ? counted.rows / counted.executions : null,
});

function difference(now, before) {
  // A model that was reloaded counts from zero again.
  const from = before && COUNTS.every((count) => now[count] >= before[count]) ? before : null;
  const were = new Map(from?.batches.map(({ rows, executions }) => [rows, executions]));
  return {
    ...Object.fromEntries(COUNTS.map((count) => [count, now[count] - (from?.[count] ?? 0)])),
    batches: new Map(now.batches.map(({ rows, executions }) => [rows, executions - (were.get(rows) ?? 0)])),
  };
}
