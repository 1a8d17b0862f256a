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

const FINAL = new Set([401, 403, 407, 415, 301, 302, 303, 307, 308]);
const LONGEST_WAIT = 30_000;

export const RESULT = Object.freeze({
  ANSWER: 'answer',
  FAILURE: 'failure',
  TOO_LARGE: 'too large',
  FINAL: 'final',
  UNKNOWN: 'unknown',
  STALE: 'stale',
});

function retryAfter({ status, headers }) {
  const text = headers['retry-after'];
  const seconds = Number(text);
  if (text !== undefined && seconds >= 0) return Math.min(LONGEST_WAIT, seconds * 1000);
  return status === 429 ? 1000 : 0;
}

function byHttpStatus(response) {
  const what = `the relay, or a proxy before it, answers with HTTP ${response.status}`;
  if (FINAL.has(response.status)) return { kind: RESULT.FINAL, why: what };
  if (response.status === 413) return { kind: RESULT.TOO_LARGE, why: what, retryAfter: 0 };
  return { kind: RESULT.FAILURE, why: what, retryAfter: retryAfter(response) };
}

function byStatus(response, { code, retryAfter: asked, text }) {
  const why = `the relay says: ${text || `status ${code}`}`;
  const wait = Math.max(retryAfter(response), Math.min(LONGEST_WAIT, asked));
  switch (code) {
    case STATUS.UNKNOWN:
      return { kind: RESULT.UNKNOWN, why, retryAfter: wait };
    case STATUS.STALE:
      return { kind: RESULT.STALE, why, retryAfter: wait };
    case STATUS.CORRUPT:
    case STATUS.BUSY:
      return { kind: RESULT.FAILURE, why, retryAfter: wait };
    case STATUS.TOO_LARGE:
      return { kind: RESULT.TOO_LARGE, why, retryAfter: wait };
    case STATUS.NOT_AUTHORISED:
    case STATUS.DENIED:
    case STATUS.MALFORMED:
      return { kind: RESULT.FINAL, why };
    default:
      return { ...byHttpStatus(response), why };
  }
}

/** {kind, value, flags, why, retryAfter} of an HTTP response, or of an error. */
export function interpret(error, response) {
  if (error) return { kind: RESULT.FAILURE, why: error.message, retryAfter: 0 };
  if (!hasMagic(response.body)) return byHttpStatus(response);
  try {
    const { kind, flags, content } = decodeEnvelope(response.body);
    if (kind === KIND.ANSWER) return { kind: RESULT.ANSWER, of: kind, flags, value: decodeAnswer(content) };
    if (kind === KIND.ATTACHED) return { kind: RESULT.ANSWER, of: kind, flags, value: decodeAttached(content) };
    if (kind === KIND.STATUS) return byStatus(response, decodeStatus(content));
    return { kind: RESULT.FAILURE, why: `an envelope of kind ${kind}`, retryAfter: 0 };
  } catch (problem) {
    return { kind: problem.foreign ? RESULT.FINAL : RESULT.FAILURE, why: problem.message, retryAfter: 0 };
  }
}
