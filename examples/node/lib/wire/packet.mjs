// Packets and batches of packets: PROTOCOL section 1.

import { crc32cWithout } from './crc32c.mjs';

export const HEADER = 24;
export const VERSION = 1;
export const MAX_PACKET = 16 * 1024 * 1024; // 1.3

export const TYPE = Object.freeze({
  CONNECT: 1,
  ACCEPTED: 2,
  REJECTED: 3,
  DATA: 4,
  CLOSE: 5,
  ACK: 6,
  SHUTDOWN: 7,
  ABORT: 9,
  OPTION: 10,
  LISTEN_STATE: 11,
  NOOP: 12,
  FINISH: 13,
  PING: 14,
  PONG: 15,
  PROBE: 16,
  DROPPED: 17,
  EDGE: 18,
});
export const TYPE_NAME = Object.fromEntries(Object.entries(TYPE).map(([name, number]) => [number, name]));

/** The bytes of a packet; the checksum is computed here (1.2). */
export function encodePacket({ type, attempt = 0, source = 0, destination = 0, sequence = 0, payload }) {
  const length = payload ? payload.length : 0;
  const bytes = Buffer.allocUnsafe(HEADER + length);
  bytes.writeUInt16BE(VERSION, 0);
  bytes.writeUInt8(attempt & 0xff, 2);
  bytes.writeUInt8(type, 3);
  bytes.writeUInt32BE(HEADER + length, 4);
  bytes.writeUInt32BE(source, 8);
  bytes.writeUInt32BE(destination, 12);
  bytes.writeUInt32BE(sequence, 16);
  if (length) bytes.set(payload, HEADER);
  bytes.writeUInt32BE(crc32cWithout(bytes, 20), 20);
  return bytes;
}

/** The fields of the packet in `bytes`, which is exactly one packet whose checksum is right. */
function decodePacket(bytes) {
  return {
    version: bytes.readUInt16BE(0),
    attempt: bytes[2],
    type: bytes[3],
    source: bytes.readUInt32BE(8),
    destination: bytes.readUInt32BE(12),
    sequence: bytes.readUInt32BE(16),
    payload: bytes.subarray(HEADER),
  };
}

/**
 * All whole, valid packets in `bytes`, and a count of what was thrown away, by reason (1.9).
 * Packets above `largest` (1.3) and of unknown versions or types (1.4) are discarded and counted.
 */
export function parseBatch(bytes, largest = MAX_PACKET) {
  const packets = [];
  const discarded = {};
  const discard = (reason) => {
    discarded[reason] = (discarded[reason] ?? 0) + 1;
  };
  let at = 0;
  while (at < bytes.length) {
    if (bytes.length - at < HEADER) {
      discard('truncated');
      break;
    }
    const size = bytes.readUInt32BE(at + 4);
    if (size < HEADER || size > MAX_PACKET) {
      discard('size');
      break;
    }
    if (at + size > bytes.length) {
      discard('truncated');
      break;
    }
    const one = bytes.subarray(at, at + size);
    at += size;
    if (crc32cWithout(one, 20) !== one.readUInt32BE(20)) {
      discard('checksum');
      continue;
    }
    if (size > largest) {
      discard('large');
      continue;
    }
    const packet = decodePacket(one);
    if (packet.version !== VERSION) discard('version');
    else if (!TYPE_NAME[packet.type]) discard('type');
    else packets.push(packet);
  }
  return { packets, discarded };
}
