// Fields of payloads, one after another: numbers in network byte order, names and texts.

export class Malformed extends Error {}

const utf8 = new TextDecoder('utf-8', { fatal: true });

/** Reads fields one after another and throws Malformed at the end of the bytes. */
export class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  take(count) {
    if (this.at + count > this.bytes.length) throw new Malformed('payload is too short');
    const part = this.bytes.subarray(this.at, this.at + count);
    this.at += count;
    return part;
  }

  u8() {
    return this.take(1)[0];
  }
  u16() {
    return this.take(2).readUInt16BE(0);
  }
  u32() {
    return this.take(4).readUInt32BE(0);
  }
  u64() {
    return this.take(8).readBigUInt64BE(0);
  }
  rest() {
    return this.take(this.bytes.length - this.at);
  }
  get left() {
    return this.bytes.length - this.at;
  }

  text(count) {
    try {
      return utf8.decode(this.take(count));
    } catch {
      throw new Malformed('text is not UTF-8');
    }
  }
}

export const u8 = (value) => Buffer.from([value]);
export const u16 = (value) => {
  const b = Buffer.alloc(2);
  b.writeUInt16BE(value);
  return b;
};
export const u32 = (value) => {
  const b = Buffer.alloc(4);
  b.writeUInt32BE(value);
  return b;
};
export const u64 = (value) => {
  const b = Buffer.alloc(8);
  b.writeBigUInt64BE(BigInt(value));
  return b;
};
export const text16 = (text) => {
  const b = Buffer.from(text).subarray(0, 1000);
  return Buffer.concat([u16(b.length), b]);
};

export function name8(name) {
  const bytes = Buffer.from(name);
  if (bytes.length < 1 || bytes.length > 255)
    throw new RangeError(`a name has 1 to 255 bytes, this one ${bytes.length}`);
  return Buffer.concat([u8(bytes.length), bytes]);
}
