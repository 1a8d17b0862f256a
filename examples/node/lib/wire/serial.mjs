// Serial-number arithmetic (RFC 1982) on 32-bit sequence numbers, clause 1.6.

/** `seq` plus `count`, wrapped to 32 bits. */
export const seqAdd = (seq, count) => (seq + count) >>> 0;

/** The signed distance from `b` to `a`: above 0 when a comes after b. */
export const seqDiff = (a, b) => (a - b) | 0;

export const seqAfter = (a, b) => seqDiff(a, b) > 0;
