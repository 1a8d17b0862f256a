// Options: items of kind, length and value (2.0).

import { Malformed, Reader, u16, u32, u8 } from './fields.mjs';

export const OPTION = Object.freeze({
  VERSIONS: 1,
  LARGEST_PACKET: 2,
  KEEPALIVE: 3,
  USER_TIMEOUT: 4,
  PULL_INTERVAL: 5,
  USER: 6,
  ENDPOINT_ID: 7,
});

const NUMBERS = [
  ['largestPacket', 2],
  ['keepalive', 3],
  ['userTimeout', 4],
  ['pullInterval', 5],
];

/** Options in the order of their kinds. Absent members are not written. */
export function encodeOptions(options = {}) {
  const items = [];
  const add = (kind, value) => items.push(u8(kind), u16(value.length), value);
  if (options.versions) add(1, Buffer.concat(options.versions.map(u16)));
  for (const [name, kind] of NUMBERS) if (options[name] !== undefined) add(kind, u32(options[name]));
  if (options.user !== undefined) add(6, Buffer.from(options.user));
  if (options.endpointId) add(7, options.endpointId);
  return Buffer.concat(items);
}

function decodeOption(kind, value, options) {
  const expect = (good) => {
    if (!good) throw new Malformed(`option ${kind} has a wrong length or value`);
  };
  const number = NUMBERS.find((entry) => entry[1] === kind);
  if (number) {
    expect(value.length === 4);
    options[number[0]] = value.readUInt32BE(0);
    // 2.0: a largest packet below 1,048 bytes counts as 1,048
    if (kind === OPTION.LARGEST_PACKET) options.largestPacket = Math.max(1048, options.largestPacket);
    // 2.0: 1 to 999 ms count as 1,000, so that no peer can make a connection die at once
    if (kind === OPTION.USER_TIMEOUT && options.userTimeout) options.userTimeout = Math.max(1000, options.userTimeout);
  } else if (kind === OPTION.VERSIONS) {
    expect(value.length === 4);
    options.versions = [value.readUInt16BE(0), value.readUInt16BE(2)];
    expect(options.versions[0] <= options.versions[1]);
  } else if (kind === OPTION.USER) {
    expect(value.length <= 255);
    options.user = new Reader(value).text(value.length);
  } else if (kind === OPTION.ENDPOINT_ID) {
    expect(value.length === 16);
    options.endpointId = Buffer.from(value);
  }
}

export function decodeOptions(reader) {
  const options = {};
  const seen = new Set();
  while (reader.left) {
    const kind = reader.u8();
    const value = reader.take(reader.u16());
    if (kind < 1 || kind > 7) continue; // 2.0: unknown kinds are skipped
    if (seen.has(kind)) throw new Malformed(`option ${kind} comes twice`);
    seen.add(kind);
    decodeOption(kind, value, options);
  }
  return options;
}
