// The clock of everything that has timers. Tests pass a simulated one.

const LONGEST = 2 ** 31 - 1; // setTimeout fires at once after a longer delay

export const CLOCK = Object.freeze({
  /** Milliseconds since some moment; they never go back. */
  now: () => performance.now(),
  /** Call `action` after `delay` ms, or after 24 days if that is sooner. Returns a function that cancels this. */
  after(delay, action) {
    const timer = setTimeout(action, Math.max(0, Math.min(LONGEST, delay)));
    return () => clearTimeout(timer);
  },
  /** Call `action` as soon as the present event has been handled. */
  soon(action) {
    setImmediate(action);
  },
});

/** One alarm that can be set again and again; only the newest setting counts. */
export class Alarm {
  constructor(clock, action) {
    this.clock = clock;
    this.action = action;
    this.cancel = null;
  }

  set(delay) {
    this.clear();
    this.cancel = this.clock.after(delay, () => {
      this.cancel = null;
      this.action();
    });
  }

  clear() {
    this.cancel?.();
    this.cancel = null;
  }
}
