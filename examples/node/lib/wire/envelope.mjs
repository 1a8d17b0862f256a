// Envelopes of exchanges: PROTOCOL 7.1, 7.2, 7.10, 7.11.

import { crc32cWithout } from './crc32c.mjs';
import { Malformed, Reader, u16, u32, u8 } from './fields.mjs';

export const ENVELOPE = 16;
export const EXCHANGE_HEADER = ENVELOPE + 52;
export const KIND = Object.freeze({ ATTACH: 1, ATTACHED: 2, EXCHANGE: 3, ANSWER: 4, STATUS: 5 });
export const FLAG = Object.freeze({ MASKED: 1, PIECE: 2, PULL: 4, MORE: 8 });
export const STATUS = Object.freeze({
  UNKNOWN: 1,
  CORRUPT: 2,
  STALE: 3,
  TOO_LARGE: 4,
  BUSY: 5,
  NOT_AUTHORISED: 6,
  DENIED: 7,
  MALFORMED: 8,
});

/** An envelope of `parts`. It is masked first, and then the checksum is computed (7.1). */
export function encodeEnvelope(kind, flags, parts, mask) {
  const body = Buffer.concat([Buffer.alloc(ENVELOPE), ...parts]);
  body.write('TUNL', 0, 'latin1');
  body[4] = 1;
  body[5] = kind;
  body[6] = flags | (mask === undefined ? 0 : FLAG.MASKED);
  body[7] = mask ?? 0;
  if (mask) for (let i = ENVELOPE; i < body.length; i += 1) body[i] ^= mask;
  body.writeUInt32BE(body.length - ENVELOPE, 8);
  body.writeUInt32BE(crc32cWithout(body, 12), 12);
  return body;
}

/** The same body under a new mask: this does not change the body in the sense of 7.5. */
export function remask(body, mask) {
  return encodeEnvelope(body[5], body[6] & ~FLAG.MASKED, [body.subarray(ENVELOPE)], mask);
}

export const hasMagic = (body) => body.length >= 4 && body.toString('latin1', 0, 4) === 'TUNL';

/** Kind, flags and content of an envelope. Throws Malformed; with `.foreign` if it is whole, but of another version. */
export function decodeEnvelope(body) {
  if (body.length < ENVELOPE || !hasMagic(body)) throw new Malformed('not an envelope');
  if (body.readUInt32BE(8) !== body.length - ENVELOPE) throw new Malformed('the envelope is truncated');
  if (crc32cWithout(body, 12) !== body.readUInt32BE(12)) throw new Malformed('the envelope has a wrong checksum');
  if (body[4] !== 1) throw Object.assign(new Malformed(`envelope version ${body[4]}`), { foreign: true });
  let content = body.subarray(ENVELOPE);
  const flags = body[6];
  if (flags & FLAG.MASKED && body[7]) content = Buffer.from(content.map((byte) => byte ^ body[7]));
  return { kind: body[5], flags, content };
}

export function encodeAttach({ secret, generation, pullInterval = 0, largestBody, versions = [1, 1], name = '' }) {
  const bytes = Buffer.from(name);
  return encodeEnvelope(KIND.ATTACH, 0, [
    secret,
    u32(generation),
    u32(pullInterval),
    u32(largestBody),
    u16(versions[0]),
    u16(versions[1]),
    u8(bytes.length),
    bytes,
  ]);
}

export function decodeAttach(content) {
  const r = new Reader(content);
  const attach = {
    secret: r.take(32),
    generation: r.u32(),
    pullInterval: r.u32(),
    largestBody: r.u32(),
    versions: [r.u16(), r.u16()],
  };
  attach.name = r.text(r.u8());
  return attach;
}

export function decodeAttached(content) {
  const r = new Reader(content);
  const attached = {
    id: Buffer.from(r.take(16)),
    epoch: Buffer.from(r.take(8)),
    generation: r.u32(),
  };
  const flags = r.u8();
  attached.fresh = (flags & 1) === 1;
  attached.streams = (flags & 2) === 2; // the relay can stream answers (7.20), which this endpoint does not ask for
  r.u8();
  attached.mostPackets = r.u16();
  for (const field of ['largestBody', 'largestPacket', 'largestHold', 'pullInterval', 'initialEdge'])
    attached[field] = r.u32();
  attached.lanes = r.u16();
  attached.version = r.u16();
  return attached;
}

export function encodeExchange({
  id,
  epoch,
  generation,
  lane,
  number,
  serialReceived,
  hold = 0,
  answerLimit,
  pieceOffset = 0,
  flags = 0,
  packets = [],
}) {
  const fixed = Buffer.alloc(24);
  fixed.writeUInt32BE(number, 0);
  fixed.writeUInt32BE(serialReceived, 4);
  fixed.writeUInt32BE(hold, 8);
  fixed.writeUInt32BE(answerLimit, 12);
  fixed.writeUInt32BE(pieceOffset, 16);
  return encodeEnvelope(KIND.EXCHANGE, flags, [
    id,
    epoch,
    u32(generation),
    u16(lane),
    u16(0),
    fixed.subarray(0, 20),
    ...packets,
  ]);
}

export function decodeExchange(content) {
  const r = new Reader(content);
  const exchange = { id: r.take(16), epoch: r.take(8), generation: r.u32(), lane: r.u16() };
  r.u16();
  for (const field of ['number', 'serialReceived', 'hold', 'answerLimit', 'pieceOffset']) exchange[field] = r.u32();
  exchange.packets = r.rest();
  return exchange;
}

export function decodeAnswer(content) {
  const r = new Reader(content);
  const answer = { lane: r.u16() };
  const count = r.u16();
  Object.assign(answer, { number: r.u32(), serial: r.u32(), pieceOffset: r.u32(), evidence: [] });
  for (let i = 0; i < count; i += 1) answer.evidence.push([r.u16(), r.u32()]);
  answer.packets = r.rest();
  return answer;
}

/** Encodes ANSWER and ATTACHED for the tests, which encode the messages of the transcript again. */
export function encodeAnswer({ lane, number, serial, pieceOffset = 0, evidence, packets = [] }, flags = 0) {
  const named = evidence.flatMap(([of, highest]) => [u16(of), u32(highest)]);
  return encodeEnvelope(KIND.ANSWER, flags, [
    u16(lane),
    u16(evidence.length),
    u32(number),
    u32(serial),
    u32(pieceOffset),
    ...named,
    ...packets,
  ]);
}

export function encodeAttached(a) {
  return encodeEnvelope(KIND.ATTACHED, 0, [
    a.id,
    a.epoch,
    u32(a.generation),
    u8((a.fresh ? 1 : 0) | (a.streams ? 2 : 0)),
    u8(0),
    u16(a.mostPackets),
    u32(a.largestBody),
    u32(a.largestPacket),
    u32(a.largestHold),
    u32(a.pullInterval),
    u32(a.initialEdge),
    u16(a.lanes),
    u16(a.version),
  ]);
}

export function decodeStatus(content) {
  const r = new Reader(content);
  const code = r.u16();
  r.u16();
  const retryAfter = r.u32();
  return { code, retryAfter, text: r.text(r.u16()) };
}
