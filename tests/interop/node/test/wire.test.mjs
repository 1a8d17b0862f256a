import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { Malformed, crc32c, layout } from '../lib/fields.mjs';
import { StreamDigest } from '../lib/halves.mjs';
import * as wire from '../lib/wire.mjs';

const packet = (text) => wire.encodePacket({ type: wire.TYPE.DATA, source: 1, sequence: 5, values: Buffer.from(text) });

test('1.1, 1.6: the CRC-32C of 123456789, and serial numbers that wrap', () => {
  assert.equal(crc32c(Buffer.from('123456789')), 0xe3069283);
  assert.ok(wire.seqAfter(0, 0xffffffff) && !wire.seqAfter(0xffffffff, 0) && !wire.seqAfter(7, 7));
});
test('1.3, 1.4, 1.9: damaged, large and unknown packets are skipped; a wrong size ends the batch', () => {
  const damaged = packet('b');
  damaged[24] ^= 1;
  const unknown = wire.encodePacket({ type: 8 });
  const all = [packet('a'), damaged, packet('x'.repeat(100)), unknown, packet('c'), packet('d').subarray(0, 24)];
  const { packets, discarded } = wire.parseBatch(Buffer.concat(all), 60);
  assert.deepEqual(packets.map(({ payload }) => payload.toString()), ['a', 'c']);
  assert.deepEqual(discarded, ['checksum', 'large', 'unknown', 'size']);
});
test('2.0: unknown options are skipped; repeated, short and overrunning ones are malformed; some are raised', () => {
  const decode = (hex) => layout('options:options').decode(Buffer.from(hex, 'hex')).options;
  assert.deepEqual(decode('ff0002abcd01000400010001'), { versions: [1, 1] });
  assert.deepEqual(decode('040004000000010200040000000a'), { userTimeout: 1000, largestPacket: 1048 });
  for (const wrong of ['0100040001000101000400010001', '03000200ff', '030004ff', '01000400020001', '060001ff'])
    assert.throws(() => decode(wrong), Malformed);
});
test('4.4: an ACK with a range below its cumulative sequence is malformed', () => {
  const { encode, decode } = wire.PAYLOAD[wire.TYPE.ACK];
  const check = (range) => decode(encode({ cumulative: 9, count: 1, ranges: [range] })).ranges;
  assert.deepEqual(check([11, 12]), [[11, 12]]);
  for (const range of [[9, 10], [12, 11]]) assert.throws(() => check(range), Malformed);
});
test('7.1, 8.1: a mask changes no content; damage and another version are told apart; link headers', () => {
  const body = wire.encodeBody(wire.KIND.STATUS, { code: 3, retryAfter: 7, text: 'x' });
  assert.notDeepEqual(wire.remask(body, 90).subarray(16), body.subarray(16));
  assert.deepEqual(wire.decodeBody(wire.remask(body, 90)).value, wire.decodeBody(body).value);
  assert.throws(() => wire.decodeBody(body.subarray(0, -1)), /damaged/);
  const header = wire.encodeLinkHeader(3, 2, 100);
  assert.equal(wire.decodeLinkHeader(header).received, 2);
  header[7] ^= 1;
  assert.equal(wire.decodeLinkHeader(header), null);
});

// tests/interop/transcript.txt: lines of hexadecimal below a line that starts with > or <
const document = readFileSync(new URL('../../transcript.txt', import.meta.url), 'utf8');
const bytesOf = (part) => Buffer.from([...part.matchAll(/^ {2}([0-9a-f]+) +;/gm)].map((m) => m[1]).join(''), 'hex');
const bodies = document.split(/^[<>] .*$/m).slice(1).map(bytesOf);

test('transcript.txt: every body, decoded and encoded again, is equal', () => {
  assert.equal(bodies.length, 36);
  for (const body of bodies) {
    const { kind, flags, value } = wire.decodeBody(body);
    const { packets = [], discarded } = value.packets ? wire.parseBatch(value.packets) : {};
    assert.deepEqual(discarded ?? [], []);
    const again = packets.map(({ payload, ...fields }) => {
      const codec = wire.PAYLOAD[fields.type];
      return wire.encodePacket({ ...fields, values: codec ? codec.encode(codec.decode(payload)) : payload });
    });
    assert.deepEqual(wire.encodeBody(kind, { ...value, packets: Buffer.concat(again) }, flags), body);
  }
});
test('2.5: the digest of the transcript, in parts, beside another stream', () => {
  const [one, other] = [new StreamDigest(), new StreamDigest()];
  for (const [digest, text] of [[one, 'wor'], [other, 'hello'], [one, 'ld']]) digest.update(Buffer.from(text));
  assert.equal(one.digest().toString('hex'), 'fa0d38a9b38280d0891e4985bdb2583e');
  assert.equal(other.digest().toString('hex'), 'b5e9c1ad071b3e7fc779cfaa5e523818');
});
