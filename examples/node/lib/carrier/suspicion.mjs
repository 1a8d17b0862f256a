// Whether bodies or answers are too large for a path that does not say so (7.16, unexplained failures).

import { LEAST } from './limits.mjs';

const SUSPECTED = 4;
const TOO_MANY = 8;
const INTERVALS = 2; // in so many intervals between the failures a smaller body must have passed

/** What is known about the body of one push. */
export class SuspectBody {
  constructor(size) {
    this.size = size;
    this.failures = 0;
    this.passed = new Set(); // numbers of failures after which a smaller body passed
  }

  /** Another unexplained failure. */
  failed() {
    this.failures += 1;
  }

  get suspected() {
    return this.size > LEAST && this.failures >= SUSPECTED;
  }
  get proven() {
    return this.size > LEAST && this.failures >= TOO_MANY && this.passed.size >= INTERVALS;
  }

  /** An exchange with a body of `size` bytes was answered. */
  otherPassed(size) {
    if (size >= this.size) {
      this.failures = 0;
      this.passed.clear();
    } else if (this.failures) this.passed.add(this.failures);
  }
}

/** Two exchanges that were answered only with a small limit prove that answers are too large. */
export class SuspectAnswers {
  constructor() {
    this.firstProof = null; // when the first of the two was answered
  }

  /**
   * An exchange that began at `startedAt` was answered by an attempt with the small limit, and more packets wait.
   * Returns whether this is the second proof.
   */
  answeredSmall(startedAt, now) {
    if (this.firstProof !== null && startedAt > this.firstProof) {
      this.firstProof = null;
      return true;
    }
    this.firstProof ??= now;
    return false;
  }
}
