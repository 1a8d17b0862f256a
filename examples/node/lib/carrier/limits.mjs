// The sizes of the bodies that an endpoint sends and of the answers that it asks for (7.16), and the hold of its pulls
// (7.15).

const START = 64 * 1024;
const LEAST = 16 * 1024; // the document has 4 KiB
const QUICK = 500; // ms; the document does not say what "quickly" and "slow" are
const SLOW = 2000;
const RETRY = 30_000;
const LONGEST_RETRY = 600_000;

export class SizeLimit {
  constructor(most) {
    this.most = most;
    this.value = Math.min(START, most);
    this.refusedAt = null;
    this.retryPause = RETRY;
    this.retryAt = 0;
  }

  /** A body of `size` bytes was answered after `time` ms. */
  answered(size, time, now) {
    if (time > SLOW) this.value = Math.max(LEAST, this.value / 2);
    else if (time < QUICK && size > this.value * 0.75) {
      const next = Math.min(this.most, this.value * 2);
      // A refused size is tried again after 30 s, and then with exponential backoff.
      if (this.refusedAt === null || next < this.refusedAt || now >= this.retryAt) this.value = next;
    }
  }

  tooLarge(size, now) {
    this.value = Math.max(LEAST, Math.min(this.value, Math.floor(size / 2)));
    if (this.refusedAt !== null && now >= this.retryAt) this.retryPause = Math.min(LONGEST_RETRY, this.retryPause * 2);
    this.refusedAt = size;
    this.retryAt = now + this.retryPause;
  }
}

export class Hold {
  constructor(most) {
    this.most = most;
    this.learned = 15_000;
    this.value = 1000;
  }

  get next() {
    return Math.min(this.value, this.learned, this.most);
  }
  packetsCame() {
    this.value = 1000;
  }
  nothingCame() {
    this.value = Math.min(this.learned, this.value * 2);
  }
  died() {
    this.learned = Math.max(2000, this.learned / 2);
  }
}
