// At most `count` tasks at a time; the others wait in the order in which they came.
export class Semaphore {
  #free;
  #waiting = [];

  constructor(count) {
    this.#free = count;
  }

  /** Run `task` when it is its turn; a task aborted before that never starts. */
  async run(task, signal) {
    await this.#turn(signal);
    try {
      return await task();
    } finally {
      const next = this.#waiting.shift();
      if (next) next();
      else this.#free += 1;
    }
  }

  #turn(signal) {
    signal.throwIfAborted();
    if (this.#free > 0) {
      this.#free -= 1;
      return Promise.resolve();
    }
    return new Promise((start, refuse) => {
      this.#waiting.push(start);
      signal.addEventListener("abort", () => {
        const place = this.#waiting.indexOf(start);
        if (place < 0) return;
        this.#waiting.splice(place, 1);
        refuse(signal.reason);
      }, { once: true });
    });
  }
}
