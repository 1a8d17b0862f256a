// What a response means: 7.9 and 7.10.

import {
  KIND,
  STATUS,
  decodeAnswer,
  decodeAttached,
  decodeEnvelope,
  decodeStatus,
  hasMagic,
} from '../wire/envelope.mjs';

const REFUSALS = new Set([401, 403, 415, 301, 302, 303, 307, 308]);
const LONGEST_WAIT = 30_000;
const LONGEST_WAIT_OF_INTERMEDIARY = 2000; // unless its status is 429

export const RESULT = Object.freeze({
  ANSWER: 'answer',
  FAILURE: 'failure',
  REFUSAL: 'refusal', // of an intermediary: final before the first attach, else a failure
  TOO_LARGE: 'too large',
  FINAL: 'final',
  UNKNOWN: 'unknown',
  STALE: 'stale',
});

/**
 * The pause that Retry-After asks for, in ms; 0 without one. A date is compared with the Date of the response, if it
 * has one: the clocks of two machines may differ by more than the pause.
 */
function retryAfter(headers, wallClock) {
  const text = (headers['retry-after'] ?? '').trim();
  if (/^\d+$/.test(text)) return Number(text) * 1000;
  const until = Date.parse(text);
  const since = Date.parse(headers.date ?? '');
  return Number.isNaN(until) ? 0 : Math.max(0, until - (Number.isNaN(since) ? wallClock : since));
}

const tooMany = (response, asked) => (response.status === 429 && !asked ? 1000 : asked);

function byHttpStatus(response, wallClock) {
  const { status } = response;
  const why = `the relay, or a proxy before it, answers with HTTP ${status}`;
  // This endpoint leaves no gaps between requests (7.18), so it also rests after the 429 of an intermediary.
  const asked = tooMany(response, retryAfter(response.headers, wallClock));
  const wait = Math.min(asked, status === 429 ? LONGEST_WAIT : LONGEST_WAIT_OF_INTERMEDIARY);
  if (status === 407) return { kind: RESULT.FINAL, why };
  if (REFUSALS.has(status)) return { kind: RESULT.REFUSAL, why, retryAfter: wait, unexplained: true };
  if (status === 413) return { kind: RESULT.TOO_LARGE, why, retryAfter: wait, unexplained: true };
  return { kind: RESULT.FAILURE, why, retryAfter: wait, unexplained: status !== 429 };
}

const BY_CODE = Object.freeze({
  [STATUS.UNKNOWN]: RESULT.UNKNOWN,
  [STATUS.CORRUPT]: RESULT.FAILURE,
  [STATUS.STALE]: RESULT.STALE,
  [STATUS.TOO_LARGE]: RESULT.TOO_LARGE,
  [STATUS.BUSY]: RESULT.FAILURE,
  [STATUS.NOT_AUTHORISED]: RESULT.FINAL,
  [STATUS.DENIED]: RESULT.FINAL,
  [STATUS.MALFORMED]: RESULT.FINAL,
});

/** 7.10. A refusal with a code that is not known comes from the relay itself, so it is final. */
function byStatus(response, { code, retryAfter: inStatus, text }, wallClock) {
  const why = `the relay says: ${text || `status ${code}`}`;
  const asked = tooMany(response, Math.max(retryAfter(response.headers, wallClock), inStatus));
  let kind = BY_CODE[code] ?? byHttpStatus(response, wallClock).kind;
  if (kind === RESULT.REFUSAL) kind = RESULT.FINAL;
  return { kind, why, retryAfter: Math.min(LONGEST_WAIT, asked), unexplained: false };
}

/**
 * What an HTTP response, or an error, means: {kind, why, retryAfter (ms), unexplained (7.16)}; of an answer, also
 * {of, flags, value}.
 */
export function interpret(error, response, wallClock = Date.now()) {
  if (error) return { kind: RESULT.FAILURE, why: error.message, retryAfter: 0, unexplained: true };
  const coding = (response.headers['content-encoding'] ?? 'identity').trim().toLowerCase();
  if (coding !== 'identity' || !hasMagic(response.body)) return byHttpStatus(response, wallClock);
  try {
    const { kind, flags, content } = decodeEnvelope(response.body);
    if (kind === KIND.ANSWER) return { kind: RESULT.ANSWER, of: kind, flags, value: decodeAnswer(content) };
    if (kind === KIND.ATTACHED) return { kind: RESULT.ANSWER, of: kind, flags, value: decodeAttached(content) };
    if (kind === KIND.STATUS) return byStatus(response, decodeStatus(content), wallClock);
  } catch (problem) {
    if (problem.foreign) return { kind: RESULT.FINAL, why: problem.message };
  }
  return byHttpStatus(response, wallClock); // an envelope that is not whole, or none that answers a request
}
