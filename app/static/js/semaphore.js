// A semaphore: at most `count` tasks run at a time, the others wait in order.
export class Semaphore {
  #free;
  #waiting = [];

  constructor(count) {
    this.#free = count;
  }

  /** Run `task` when it has a place; a task that is aborted before never starts. */
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
        const index = this.#waiting.indexOf(start);
        if (index < 0) return;
        this.#waiting.splice(index, 1);
        refuse(signal.reason);
      }, { once: true });
    });
  }
}
