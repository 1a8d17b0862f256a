// CRC-32C (Castagnoli), clause 1.1. Four tables, so that four bytes are taken at a time.

const POLYNOMIAL = 0x82f63b78; // reflected

const tables = [0, 1, 2, 3].map(() => new Int32Array(256));
for (let byte = 0; byte < 256; byte += 1) {
  let value = byte;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ POLYNOMIAL : value >>> 1;
  tables[0][byte] = value;
}
for (let byte = 0; byte < 256; byte += 1) {
  for (let k = 1; k < 4; k += 1) {
    const before = tables[k - 1][byte];
    tables[k][byte] = (before >>> 8) ^ tables[0][before & 0xff];
  }
}
const [T0, T1, T2, T3] = tables;

/** Continue the CRC-32C `crc` (0 at the start) with bytes[start..end). */
export function crc32c(bytes, start = 0, end = bytes.length, crc = 0) {
  let c = ~crc;
  let i = start;
  for (; i + 4 <= end; i += 4) {
    c ^= bytes[i] | (bytes[i + 1] << 8) | (bytes[i + 2] << 16) | (bytes[i + 3] << 24);
    c = T3[c & 0xff] ^ T2[(c >>> 8) & 0xff] ^ T1[(c >>> 16) & 0xff] ^ T0[c >>> 24];
  }
  for (; i < end; i += 1) c = (c >>> 8) ^ T0[(c ^ bytes[i]) & 0xff];
  return ~c >>> 0;
}

const ZEROS = new Uint8Array(4);

/** The CRC-32C of bytes[start..end) with the four bytes at `field` taken as zero. */
export function crc32cWithout(bytes, field, start = 0, end = bytes.length) {
  const head = crc32c(bytes, start, field);
  return crc32c(bytes, field + 4, end, crc32c(ZEROS, 0, 4, head));
}
