// What happened between two looks at Triton's counts, and what that is a second, a request or a batch.
const COUNTS = ["requests", "failures", "rows", "executions", "queue_ms", "compute_ms"];
// After a longer pause nobody knows when in it something happened.
const LONGEST_STEP_S = 30;

/** The last minutes, step by step; a step has what each model did in it. */
export class History {
  #keepS;
  #last = null;
  steps = [];
  isFull = false;

  constructor(keepS) {
    this.#keepS = keepS;
  }

  /** `look`: the models' sums and the time of day, in seconds, at which they were told. */
  add(look) {
    const before = this.#last;
    // Another process may tell of an earlier look, and the same look may be told twice.
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

  /** What a model did in the last seconds, all of them together. */
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

/** What those counts are as figures; null where nothing happened of which there could be one. */
export const figures = (counted, seconds = counted.seconds) => ({
  rows_per_s: seconds ? counted.rows / seconds : null,
  requests_per_s: seconds ? counted.requests / seconds : null,
  queue_ms: counted.requests ? counted.queue_ms / counted.requests : null,
  compute_ms: counted.requests ? counted.compute_ms / counted.requests : null,
  batch: counted.executions ? counted.rows / counted.executions : null,
});

function difference(now, before) {
  // A model that was loaded anew counts from nothing again.
  const from = before && COUNTS.every((count) => now[count] >= before[count]) ? before : null;
  const were = new Map(from?.batches.map(({ rows, executions }) => [rows, executions]));
  return {
    ...Object.fromEntries(COUNTS.map((count) => [count, now[count] - (from?.[count] ?? 0)])),
    batches: new Map(now.batches.map(({ rows, executions }) => [rows, executions - (were.get(rows) ?? 0)])),
  };
}
