// The size of the bodies that an endpoint sends, or of the answers that it asks for (7.16).

const START = 64 * 1024;
export const LEAST = 4 * 1024;
const QUICK = 500; // ms; 7.16 compares with the shortest round trip, and allows other figures
const SLOW = 2000;
const RETRY = 30_000;
const LONGEST_RETRY = 600_000;
const KNOWN = 60_000; // for so long a measured time is compared with others

/** Tells the time that a body of some size takes from the time for which every body waits, whatever its size. */
class Waits {
  constructor() {
    this.classes = new Map(); // power of two -> {size, time, at}
  }

  /** A body of `size` bytes has taken `time`. Returns how much of it grows with the size; null if that is unknown. */
  transfer(size, time, now) {
    const key = Math.ceil(Math.log2(Math.max(size, 256)));
    const known = this.classes.get(key);
    const smooth = (old, value) => (known && now - known.at < KNOWN ? old + (value - old) / 4 : value);
    const mine = { size: smooth(known?.size, size), time: smooth(known?.time, time), at: now };
    this.classes.set(key, mine);
    const other = this.nearest(key, now);
    if (!other) return null;
    const perByte = Math.max(0, (mine.time - other.time) / (mine.size - other.size));
    return Math.min(time, perByte * size);
  }

  /** The class to compare with: the next smaller one, or else the next larger one. */
  nearest(key, now) {
    const others = [...this.classes].filter(([one, { at }]) => one !== key && now - at < KNOWN);
    others.sort((a, b) => a[0] - b[0]);
    return (others.filter(([one]) => one < key).pop() ?? others[0])?.[1];
  }
}

export class SizeLimit {
  constructor(most) {
    this.most = most;
    this.value = Math.min(START, most);
    this.refusedAt = Infinity; // the size that was refused
    this.retryPause = RETRY;
    this.retryAt = 0;
    this.trialPause = RETRY;
    this.trialAt = 0;
    this.waits = new Waits();
  }

  /** A body of `size` bytes was answered after `time` ms. */
  answered(size, time, now) {
    if (size >= this.refusedAt) this.passed();
    const transfer = this.waits.transfer(size, time, now);
    if (size <= this.value * 0.75) return; // only full bodies show anything
    if ((transfer ?? time) > SLOW) this.slow(transfer === null, now);
    else if ((transfer ?? time) < QUICK) this.grow(now);
  }

  grow(now) {
    const next = Math.min(this.most, this.value * 2);
    if (next >= this.refusedAt && now < this.retryAt) return;
    this.value = next;
    if (next > 2 * LEAST) this.trialPause = RETRY;
  }

  /**
   * Halve. At the least size there is nothing smaller to compare with, so try a larger one from time to time: the
   * comparison shows whether every body waits so long.
   */
  slow(unknown, now) {
    const trial = unknown && this.value === LEAST && now >= this.trialAt;
    this.value = Math.max(LEAST, trial ? Math.min(this.most, this.value * 2, this.refusedAt - 1) : this.value / 2);
    if (!trial) return;
    this.trialAt = now + this.trialPause;
    this.trialPause = Math.min(LONGEST_RETRY, this.trialPause * 2);
  }

  /** A body of the refused size has passed: the refusal is forgotten. */
  passed() {
    this.refusedAt = Infinity;
    this.retryPause = RETRY;
  }

  /** A body of `size` bytes was refused. Several lanes may report it; only the first one counts. */
  tooLarge(size, now) {
    const fresh = size <= this.value || this.refusedAt === Infinity;
    this.value = Math.max(LEAST, Math.min(this.value, Math.floor(size / 2)));
    if (!fresh) return;
    if (size >= this.refusedAt && now >= this.retryAt) this.retryPause = Math.min(LONGEST_RETRY, this.retryPause * 2);
    this.refusedAt = size;
    this.retryAt = now + this.retryPause;
  }
}
