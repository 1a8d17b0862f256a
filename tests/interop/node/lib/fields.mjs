// Layouts of fields, one after another, and CRC-32C (1.1). A layout is a text such as 'version:u32 name:n8'.
export class Malformed extends Error {}

const TABLE = Int32Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? (value >>> 1) ^ 0x82f63b78 : value >>> 1;
  return value;
});
/** Continue the CRC-32C `crc` (0 at the start) with bytes[start..end). */
export function crc32c(bytes, start = 0, end = bytes.length, crc = 0) {
  let c = ~crc;
  for (let i = start; i < end; i += 1) c = (c >>> 8) ^ TABLE[(c ^ bytes[i]) & 0xff];
  return ~c >>> 0;
}
/** The CRC-32C of `bytes` with the four bytes at `field` taken as zero. */
const crcWithout = (bytes, field) =>
  crc32c(bytes, field + 4, bytes.length, crc32c(Buffer.alloc(4), 0, 4, crc32c(bytes, 0, field)));
export const hasChecksum = (bytes, field) => crcWithout(bytes, field) === bytes.readUInt32BE(field);
export function withChecksum(bytes, field) {
  bytes.writeUInt32BE(crcWithout(bytes, field), field);
  return bytes;
}
const utf8 = new TextDecoder('utf-8', { fatal: true });
class Reader {
  constructor(bytes) { this.bytes = bytes; }
  take(count) {
    if (count > this.bytes.length) throw new Error('the bytes are too short for the layout');
    const part = this.bytes.subarray(0, count);
    this.bytes = this.bytes.subarray(count);
    return part;
  }
  text(count) { return utf8.decode(this.take(count)); }
}
const EMPTY = Buffer.alloc(0);
const number = (size) => ({
  read: (r) => r.take(size).readUIntBE(0, size),
  write(value = 0) {
    const bytes = Buffer.alloc(size);
    bytes.writeUIntBE(value, 0, size);
    return bytes;
  },
});
const [u8, u16, u32] = [number(1), number(2), number(4)];
const text = (length) => ({
  read: (r) => r.text(length.read(r)),
  write(value = '') {
    const bytes = Buffer.from(value).subarray(0, 1000);
    return Buffer.concat([length.write(bytes.length), bytes]);
  },
});
const fixed = (size) => ({ read: (r) => r.take(size), write: (value = Buffer.alloc(size)) => value });
const pairs = (type) => ({ // as many as the field `count` says
  read: (r, count) => Array.from({ length: count }, () => [type[0].read(r), type[1].read(r)]),
  write: (list) => Buffer.concat(list.flatMap((pair) => pair.map((value, index) => type[index].write(value)))),
});
// 2.0: kind -> name and value. Items of other kinds are skipped.
const versions = { read: (r) => [u16.read(r), u16.read(r)], write: ([low, high]) => u32.write((low << 16) | high) };
const user = { read: (r) => r.text(r.bytes.length), write: (value) => Buffer.from(value) };
const OPTIONS = {
  1: ['versions', versions], 2: ['largestPacket', u32], 3: ['keepalive', u32], 4: ['userTimeout', u32],
  5: ['pullInterval', u32], 6: ['user', user], 7: ['endpointId', fixed(16)],
};
const options = {
  read(r) {
    const found = {};
    while (r.bytes.length) {
      const kind = u8.read(r);
      const value = new Reader(r.take(u16.read(r)));
      const [name, type] = OPTIONS[kind] ?? [];
      if (!name) continue;
      if (name in found) throw new Error(`option ${kind} comes twice`);
      found[name] = type.read(value);
      if (value.bytes.length) throw new Error(`option ${kind} has a wrong length`);
    }
    if (found.versions?.[0] > found.versions?.[1]) throw new Error('the lowest version is above the highest');
    if (found.largestPacket < 1048) found.largestPacket = 1048;
    if (found.userTimeout) found.userTimeout = Math.max(1000, found.userTimeout);
    return found;
  },
  write(values = {}) {
    return Buffer.concat(Object.entries(OPTIONS).flatMap(([kind, [name, type]]) => {
      if (values[name] === undefined) return [];
      const bytes = type.write(values[name]);
      return [u8.write(Number(kind)), u16.write(bytes.length), bytes];
    }));
  },
};
const TYPES = {
  u8, u16, u32, options, n8: text(u8), t16: text(u16), ranges: pairs([u32, u32]), evidence: pairs([u16, u32]),
  rest: { read: (r) => r.take(r.bytes.length), write: (value = EMPTY) => value },
  u48: number(6),
  last: { // an optional field at the end
    read: (r) => (r.bytes.length ? u32.read(r) : undefined),
    write: (value) => (value === undefined ? EMPTY : u32.write(value)),
  },
};
/** {encode(values), decode(bytes)}. A number as a type is that many bytes. `decode` throws Malformed. */
export function layout(description, check = () => true) {
  const fields = description.split(' ').map((field) => field.split(':'));
  const typed = fields.map(([name, type]) => [name, TYPES[type] ?? fixed(Number(type))]);
  return {
    encode: (values) => Buffer.concat(typed.map(([name, type]) => type.write(values[name]))),
    decode(bytes) {
      const [reader, values] = [new Reader(bytes), {}];
      try {
        for (const [name, type] of typed) values[name] = type.read(reader, values.count);
      } catch (error) {
        throw new Malformed(error.message);
      }
      if (reader.bytes.length || !check(values)) throw new Malformed('bytes follow, or a value is out of range');
      return values;
    },
  };
}
