// The payloads of packets: PROTOCOL section 2. Every decoder throws Malformed; its caller discards and counts (2.0).

import { Malformed, Reader, name8, text16, u16, u32, u64, u8 } from './fields.mjs';
import { decodeOptions, encodeOptions } from './options.mjs';
import { seqAfter } from './serial.mjs';

export const REJECT = Object.freeze({
  DENIED: 1,
  REFUSED: 2,
  UNREACHABLE: 3,
  NOT_RESOLVED: 4,
  TIMED_OUT: 5,
  NO_SERVICE: 6,
  GONE: 7,
  BUSY: 8,
  VERSION: 9,
  ID_IN_USE: 10,
  SHUTTING_DOWN: 11,
  MALFORMED: 12,
  FINISHED: 13,
});
export const REJECT_TEXT = [
  '',
  'denied by a rule',
  'refused by the target',
  'unreachable',
  'name not resolved',
  'timed out',
  'no such service',
  'gone',
  'busy',
  'no common version',
  'id in use',
  'shutting down',
  'malformed',
  'finished',
];
export const ABORT = Object.freeze({
  APPLICATION: 1,
  USER_TIMEOUT: 2,
  INTEGRITY: 3,
  NO_CONNECTION: 4,
  PROTOCOL: 5,
  GONE: 6,
  SHUTTING_DOWN: 7,
});
export const ABORT_TEXT = [
  '',
  'aborted by its application',
  'user timeout',
  'integrity error',
  'no such connection',
  'protocol error',
  'gone',
  'shutting down',
];
export const DROP = Object.freeze({ FULL: 1, NO_ROUTE: 2, GONE: 3, TOO_LARGE: 4 });
export const TARGET = Object.freeze({ TCP: 1, SERVICE: 2 });

export function encodeConnect({ routeKey, resume = false, kind, port = 0, host, window, options }) {
  return Buffer.concat([
    routeKey,
    u8(resume ? 1 : 0),
    u8(kind),
    u16(port),
    name8(host),
    u32(window),
    encodeOptions(options),
  ]);
}

export function decodeConnect(payload) {
  const r = new Reader(payload);
  const routeKey = Buffer.from(r.take(16));
  const resume = (r.u8() & 1) === 1;
  const kind = r.u8();
  const port = r.u16();
  const length = r.u8();
  if (!length) throw new Malformed('the target has no name');
  const host = r.text(length);
  if (kind !== TARGET.TCP && kind !== TARGET.SERVICE) throw new Malformed(`target kind ${kind}`);
  return { routeKey, resume, kind, port, host, window: r.u32(), options: decodeOptions(r) };
}

export function encodeAccepted({ routeKey, resumed = false, window, options }) {
  return Buffer.concat([routeKey, u8(resumed ? 1 : 0), u32(window), encodeOptions(options)]);
}

export function decodeAccepted(payload) {
  const r = new Reader(payload);
  const accepted = { routeKey: Buffer.from(r.take(16)), resumed: (r.u8() & 1) === 1, window: r.u32() };
  accepted.options = decodeOptions(r);
  if (!accepted.options.endpointId || !accepted.options.versions)
    throw new Malformed('ACCEPTED without a required option'); // 2.2
  return accepted;
}

export function encodeRejected({ routeKey, reason, text = '', options }) {
  return Buffer.concat([routeKey, u16(reason), text16(text), encodeOptions(options)]);
}

export function decodeRejected(payload) {
  const r = new Reader(payload);
  const routeKey = Buffer.from(r.take(16));
  const reason = r.u16();
  return { routeKey, reason, text: r.text(r.u16()), options: decodeOptions(r) };
}

export function encodeAck({ cumulative, window, delay, cause, attempt, ranges }) {
  const parts = [u32(cumulative), u32(window), u32(delay), u32(cause), u8(attempt), u8(ranges.length), u16(0)];
  for (const [first, last] of ranges) parts.push(u32(first), u32(last));
  return Buffer.concat(parts);
}

export function decodeAck(payload) {
  const r = new Reader(payload);
  const ack = { cumulative: r.u32(), window: r.u32(), delay: r.u32(), cause: r.u32(), attempt: r.u8(), ranges: [] };
  const count = r.u8();
  r.u16();
  if (count > 32) throw new Malformed(`${count} ranges`);
  for (let i = 0; i < count; i += 1) {
    const range = [r.u32(), r.u32()];
    // 4.4: inverted, or not above the cumulative sequence
    if (seqAfter(range[0], range[1]) || !seqAfter(range[0], ack.cumulative))
      throw new Malformed('a range of ACK is wrong');
    ack.ranges.push(range);
  }
  return ack;
}

export function encodeEnd({ length, digest, received }) {
  const parts = [u64(length), digest];
  if (received !== undefined) parts.push(u32(received));
  return Buffer.concat(parts);
}

export function decodeEnd(payload) {
  const r = new Reader(payload);
  const end = { length: Number(r.u64()), digest: r.take(16) };
  if (r.left >= 4) end.received = r.u32();
  return end;
}

export const encodeAbort = ({ reason, text = '' }) => Buffer.concat([u16(reason), text16(text)]);

export function decodeAbort(payload) {
  const r = new Reader(payload);
  const reason = r.u16();
  return { reason, text: r.text(r.u16()) };
}

export const encodeOption = ({ version, options }) => Buffer.concat([u32(version), encodeOptions(options)]);

export function decodeOptionPacket(payload) {
  const r = new Reader(payload);
  return { version: r.u32(), options: decodeOptions(r) };
}

export function encodeListenState({ version, state, backlog = 0, name }) {
  return Buffer.concat([u32(version), u8(state), u16(backlog), name8(name)]);
}

export function decodeListenState(payload) {
  const r = new Reader(payload);
  const decoded = { version: r.u32(), state: r.u8(), backlog: r.u16() };
  decoded.name = r.text(r.u8());
  return decoded;
}

export function decodeDropped(payload) {
  const r = new Reader(payload);
  const reason = r.u8();
  r.take(3);
  return { reason, first: r.u32(), last: r.u32(), limit: r.u32() };
}

export function decodeEdge(payload) {
  const r = new Reader(payload);
  return { sequence: r.u32(), bytes: r.u32() };
}
