// Bytes to values and back: packets (section 1), their payloads (2), bodies of exchanges (7) and links (8.1).
import { Malformed, hasChecksum, layout, withChecksum } from './fields.mjs';
// Serial-number arithmetic (1.6)
export const seqAdd = (seq, count) => (seq + count) >>> 0;
export const seqDiff = (a, b) => (a - b) | 0; // above 0 when a comes after b
export const seqAfter = (a, b) => seqDiff(a, b) > 0;
export const TYPE = Object.freeze({
  CONNECT: 1, ACCEPTED: 2, REJECTED: 3, DATA: 4, CLOSE: 5, ACK: 6, SHUTDOWN: 7, ABORT: 9, OPTION: 10,
  LISTEN_STATE: 11, NOOP: 12, FINISH: 13, PING: 14, PONG: 15, PROBE: 16, DROPPED: 17, EDGE: 18,
});
export const ABORT = Object.freeze({
  APPLICATION: 1, USER_TIMEOUT: 2, INTEGRITY: 3, NO_CONNECTION: 4, PROTOCOL: 5, SHUTTING_DOWN: 7,
});
export const REJECT = Object.freeze({ DENIED: 1, NO_SERVICE: 6, GONE: 7, VERSION: 9, FINISHED: 13 });
export const REJECT_TEXT = [
  '', 'denied by a rule', 'refused by the target', 'unreachable', 'name not resolved', 'timed out', 'no such service',
  'gone', 'busy', 'no common version', 'id in use', 'shutting down', 'malformed', 'finished', 'allowed',
  'no exit',
];
export const TARGET = Object.freeze({ TCP: 1, SERVICE: 2 });
const end = layout('high:u16 length:u48 digest:16 received:last', ({ high }) => high === 0);
const ackIsRight = ({ count, cumulative, ranges }) =>
  count <= 32 && ranges.every(([first, last]) => !seqAfter(first, last) && seqAfter(first, cumulative)); // 4.4
/** The layout of each payload. Every decoder throws Malformed; its caller discards and counts (2.0). */
export const PAYLOAD = Object.freeze({
  [TYPE.CONNECT]: layout(
    'routeKey:16 resume:u8 kind:u8 port:u16 host:n8 window:u32 options:options',
    ({ host, kind }) => host && Object.values(TARGET).includes(kind),
  ),
  [TYPE.ACCEPTED]: layout(
    'routeKey:16 resumed:u8 window:u32 options:options',
    ({ options }) => options.versions && options.endpointId, // 2.2
  ),
  [TYPE.REJECTED]: layout('routeKey:16 reason:u16 text:t16 options:options'),
  [TYPE.ACK]: layout(
    'cumulative:u32 window:u32 delay:u32 cause:u32 attempt:u8 count:u8 zero:u16 ranges:ranges', ackIsRight,
  ),
  [TYPE.FINISH]: end,
  [TYPE.CLOSE]: end,
  [TYPE.ABORT]: layout('reason:u16 text:t16'),
  [TYPE.OPTION]: layout('version:u32 options:options'),
  [TYPE.LISTEN_STATE]: layout('version:u32 state:u8 backlog:u16 name:n8 text:rest'), // 2.8: a text may follow
  [TYPE.DROPPED]: layout('reason:u8 zero:3 first:u32 last:u32 limit:u32'),
  [TYPE.EDGE]: layout('sequence:u32 bytes:u32'),
});
export const HEADER = 24;
const LARGEST = 16 * 1024 * 1024;
const CHECKSUM = 20;
const KNOWN = new Set(Object.values(TYPE));
const PACKET = layout(
  'version:u16 attempt:u8 type:u8 size:u32 source:u32 destination:u32 sequence:u32 checksum:u32 payload:rest',
);
/** The bytes of a packet. `values` are those of its payload, or its bytes. */
export function encodePacket({ type, values = Buffer.alloc(0), attempt = 0, ...fields }) {
  const payload = Buffer.isBuffer(values) ? values : PAYLOAD[type].encode(values);
  const header = { ...fields, type, attempt: attempt & 0xff, version: 1, size: HEADER + payload.length };
  return withChecksum(PACKET.encode({ ...header, payload }), CHECKSUM);
}
/** All whole, valid packets of a batch, and the reasons for which others were discarded (1.9). */
export function parseBatch(bytes, largest = LARGEST) {
  const [packets, discarded] = [[], []];
  for (let rest = bytes; rest.length;) {
    const size = rest.length < HEADER ? Infinity : rest.readUInt32BE(4);
    if (size > rest.length || size < HEADER || size > LARGEST) return { packets, discarded: [...discarded, 'size'] };
    const one = rest.subarray(0, size);
    rest = rest.subarray(size);
    const packet = PACKET.decode(one);
    if (!hasChecksum(one, CHECKSUM)) discarded.push('checksum');
    else if (size > largest) discarded.push('large');
    else if (packet.version !== 1 || !KNOWN.has(packet.type)) discarded.push('unknown');
    else packets.push(packet);
  }
  return { packets, discarded };
}
export const ENVELOPE = 16;
export const EXCHANGE_HEADER = ENVELOPE + 52;
export const KIND = Object.freeze({ ATTACH: 1, ATTACHED: 2, EXCHANGE: 3, ANSWER: 4, STATUS: 5 });
export const FLAG = Object.freeze({ MASKED: 1, PIECE: 2, PULL: 4, MORE: 8 });
const MAGIC = Buffer.from('TUNL');
const BODY = layout('magic:4 version:u8 kind:u8 flags:u8 mask:u8 length:u32 checksum:u32 content:rest');
const CONTENT = Object.freeze({
  [KIND.ATTACH]: layout('secret:32 generation:u32 pullInterval:u32 largestBody:u32 low:u16 high:u16 name:n8'),
  [KIND.ATTACHED]: layout(
    'id:16 epoch:8 generation:u32 flags:u8 age:u8 mostPackets:u16 largestBody:u32 largestPacket:u32 largestHold:u32 ' +
      'pullInterval:u32 initialEdge:u32 lanes:u16 version:u16',
  ),
  [KIND.EXCHANGE]: layout(
    'id:16 epoch:8 generation:u32 lane:u16 zero:u16 number:u32 serialReceived:u32 hold:u32 answerLimit:u32 ' +
      'pieceOffset:u32 packets:rest',
  ),
  [KIND.ANSWER]: layout('lane:u16 count:u16 number:u32 serial:u32 pieceOffset:u32 evidence:evidence packets:rest'),
  [KIND.STATUS]: layout('code:u16 zero:u16 retryAfter:u32 text:t16'),
});
const masked = (content, mask) => (mask ? Buffer.from(content.map((byte) => byte ^ mask)) : content);
function envelope(kind, flags, content, mask = 0) { // 7.1: masked first
  const bits = flags | (mask ? FLAG.MASKED : 0);
  const head = { magic: MAGIC, version: 1, kind, flags: bits, mask, length: content.length };
  return withChecksum(BODY.encode({ ...head, content: masked(content, mask) }), 12);
}
export const encodeBody = (kind, values, flags = 0) => envelope(kind, flags, CONTENT[kind].encode(values));
/** The same body under a mask: this does not change the body in the sense of 7.5. */
export const remask = (body, mask) => envelope(body[5], body[6], body.subarray(ENVELOPE), mask);
export const hasMagic = (body) => body.subarray(0, 4).equals(MAGIC);
/** {kind, flags, value} of a body. Throws Malformed, with `.foreign` if the body is whole, but of another version. */
export function decodeBody(body) {
  if (body.length < ENVELOPE || !hasMagic(body)) throw new Malformed('this is not an envelope');
  const { version, kind, flags, mask, length, content } = BODY.decode(body);
  if (length !== content.length || !hasChecksum(body, 12)) throw new Malformed('the envelope is damaged');
  if (version !== 1) throw Object.assign(new Malformed(`the envelope has version ${version}`), { foreign: true });
  if (!CONTENT[kind]) throw new Malformed(`the envelope has kind ${kind}`);
  return { kind, flags, value: CONTENT[kind].decode(masked(content, flags & FLAG.MASKED && mask)) };
}
export const LINK_HEADER = 24;
const LINK = layout('magic:4 number:u32 received:u32 length:u32 flags:u32 checksum:u32');
const LINK_MAGIC = Buffer.from('TLNK');
export const encodeLinkHeader = (number, received, length) =>
  withChecksum(LINK.encode({ magic: LINK_MAGIC, number, received, length }), CHECKSUM);
/** {number, received, length}, or null when the magic or the checksum is wrong (8.3). */
export function decodeLinkHeader(bytes) {
  const values = LINK.decode(bytes);
  return values.magic.equals(LINK_MAGIC) && hasChecksum(bytes, CHECKSUM) ? values : null;
}
