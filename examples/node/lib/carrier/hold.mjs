// For how long a pull asks to be held (7.15).

const FIRST = 1000;
const LONGEST_AT_FIRST = 15_000;
const LONGEST = 55_000;
const LEAST = 2000;
const TRIAL_AFTER = 4; // pulls
const MOST_BEFORE_TRIAL = 64;
const SIMILAR = 0.2; // 7.15 names 1 s or a quarter, and allows other figures

export class Hold {
  /** `most`: the largest hold of the relay. */
  constructor(most) {
    this.most = Math.min(most, LONGEST);
    this.longest = Math.min(LONGEST_AT_FIRST, this.most);
    this.value = FIRST;
    this.proofs = 0; // pulls that were held for long and answered, one after another
    this.needed = TRIAL_AFTER;
    this.before = null; // the longest hold before the trial that runs
    this.failedAt = null; // the age at which the last held pull failed
  }

  get next() {
    return Math.min(this.value, this.longest);
  }

  /** Packets have come: the next hold is short, because more may come soon. */
  packetsCame() {
    this.value = FIRST;
  }

  /** A pull was answered without packets. */
  nothingCame() {
    this.value = Math.min(this.longest, this.value * 2);
  }

  /** A pull was answered that had been held for `age` ms. */
  answered(age) {
    if (age < this.longest * 0.75) return;
    this.failedAt = null;
    if (this.before !== null) {
      this.before = null; // the trial has succeeded
      this.proofs = 0;
      this.needed = TRIAL_AFTER;
      return;
    }
    this.proofs += 1;
    if (this.proofs < this.needed || this.longest >= this.most) return;
    this.proofs = 0;
    this.before = this.longest;
    this.longest = Math.min(this.most, this.longest * 2);
  }

  /** A held pull failed at this age, and its first repeat was answered: the path has cut only this request. */
  failed(age) {
    this.value = Math.min(this.value, this.longest);
    if (this.before !== null) {
      if (age >= this.before) this.endTrial();
      return;
    }
    this.proofs = 0;
    const similar = this.failedAt !== null && Math.abs(age - this.failedAt) <= SIMILAR * Math.max(age, this.failedAt);
    this.failedAt = similar ? null : age;
    if (similar) this.longest = Math.max(LEAST, this.longest / 2);
  }

  endTrial() {
    this.longest = this.before;
    this.before = null;
    this.proofs = 0;
    this.needed = Math.min(MOST_BEFORE_TRIAL, this.needed * 2);
  }
}
