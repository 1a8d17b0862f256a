// The headers of batches on a link: PROTOCOL 8.1 to 8.3.

import { crc32cWithout } from './crc32c.mjs';

export const LINK_HEADER = 24;

export function encodeLinkHeader(number, received, length) {
  const bytes = Buffer.alloc(LINK_HEADER);
  bytes.write('TLNK', 0, 'latin1');
  bytes.writeUInt32BE(number, 4);
  bytes.writeUInt32BE(received, 8);
  bytes.writeUInt32BE(length, 12);
  bytes.writeUInt32BE(crc32cWithout(bytes, 20), 20);
  return bytes;
}

/** Number, receipt and length, or null when the magic or the checksum is wrong (8.3). */
export function decodeLinkHeader(bytes) {
  if (bytes.toString('latin1', 0, 4) !== 'TLNK') return null;
  if (crc32cWithout(bytes, 20, 0, LINK_HEADER) !== bytes.readUInt32BE(20)) return null;
  return { number: bytes.readUInt32BE(4), received: bytes.readUInt32BE(8), length: bytes.readUInt32BE(12) };
}
