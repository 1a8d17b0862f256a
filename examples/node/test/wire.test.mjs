import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { test } from 'node:test';
import { StreamDigest } from '../lib/digest.mjs';
import { Identity } from '../lib/endpoint/identity.mjs';
import { crc32c } from '../lib/wire/crc32c.mjs';
import * as envelope from '../lib/wire/envelope.mjs';
import { decodeLinkHeader, encodeLinkHeader } from '../lib/wire/link-frame.mjs';
import { TYPE, encodePacket, parseBatch } from '../lib/wire/packet.mjs';
import { Malformed, Reader } from '../lib/wire/fields.mjs';
import { decodeOptions } from '../lib/wire/options.mjs';
import * as payloads from '../lib/wire/payloads.mjs';
import { seqAdd, seqAfter, seqDiff } from '../lib/wire/serial.mjs';
import { readTranscript } from './transcript.mjs';

test('1.1: the CRC-32C of 123456789', () => {
  assert.equal(crc32c(Buffer.from('123456789')), 0xe3069283);
  assert.equal(crc32c(Buffer.from('6789'), 0, 4, crc32c(Buffer.from('12345'))), 0xe3069283);
});

test('1.6: serial-number arithmetic wraps', () => {
  assert.equal(seqAdd(0xffffffff, 1), 0);
  assert.equal(seqAdd(0, -1), 0xffffffff);
  assert.equal(seqDiff(2, 0xfffffffe), 4);
  assert.ok(seqAfter(0, 0xffffffff) && !seqAfter(0xffffffff, 0) && !seqAfter(7, 7));
});

test('2.5: the digest of the transcript, in parts, beside another stream', () => {
  const [one, other] = [new StreamDigest(), new StreamDigest()];
  one.update(Buffer.from('wor'));
  other.update(Buffer.from('hello'));
  one.update(Buffer.from('ld'));
  assert.equal(one.digest().toString('hex'), 'fa0d38a9b38280d0891e4985bdb2583e');
  assert.equal(other.digest().toString('hex'), 'b5e9c1ad071b3e7fc779cfaa5e523818');
});

test('6.1: the attachment id of the secret a0a0...', () => {
  assert.equal(new Identity(Buffer.alloc(32, 0xa0)).attachmentId.toString('hex'), '31509d65ea7fff4b68ba22e0275afe34');
});

const packet = (payload, sequence = 5) =>
  encodePacket({ type: TYPE.DATA, source: 1, destination: 2, sequence, payload: Buffer.from(payload) });

test('1.9: a damaged packet is skipped, a wrong size ends the batch', () => {
  const damaged = packet('b');
  damaged[24] ^= 1;
  const wrong = packet('d');
  wrong.writeUInt32BE(23, 4);
  const { packets, discarded } = parseBatch(Buffer.concat([packet('a'), damaged, packet('c'), wrong, packet('e')]));
  assert.deepEqual(
    packets.map((one) => one.payload.toString()),
    ['a', 'c'],
  );
  assert.deepEqual(discarded, { checksum: 1, size: 1 });
  assert.deepEqual(parseBatch(packet('a').subarray(0, 24)).discarded, { truncated: 1 });
});

test('1.3, 1.4: too large packets, unknown types and versions are counted', () => {
  const version2 = packet('x');
  version2.writeUInt16BE(2, 0);
  version2.writeUInt32BE(0, 20);
  version2.writeUInt32BE(crc32c(version2), 20);
  const all = Buffer.concat([packet('a'.repeat(100)), encodePacket({ type: 8 }), version2, packet('b')]);
  const { packets, discarded } = parseBatch(all, 60);
  assert.deepEqual(discarded, { large: 1, type: 1, version: 1 });
  assert.equal(packets.length, 1);
});

test('2.0: options: unknown kinds are skipped; repeated, short and overrunning ones are malformed', () => {
  const decode = (hex) => decodeOptions(new Reader(Buffer.from(hex, 'hex')));
  assert.deepEqual(decode('ff0002abcd01000400010001'), { versions: [1, 1] });
  assert.throws(() => decode('0100040001000101000400010001'), Malformed);
  assert.throws(() => decode('03000200ff'), Malformed);
  assert.throws(() => decode('030004ff'), Malformed);
});

test('2.0: a user timeout of 1 to 999 ms counts as 1 s, a largest packet below 1,048 bytes as 1,048', () => {
  const decode = (hex) => decodeOptions(new Reader(Buffer.from(hex, 'hex')));
  assert.deepEqual(decode('04000400000001'), { userTimeout: 1000 });
  assert.deepEqual(decode('04000400000000'), { userTimeout: 0 }); // counts as absent
  assert.deepEqual(decode('0200040000000a'), { largestPacket: 1048 });
});

test('7.1: masking does not change what a body says', () => {
  const body = envelope.encodeAttach({
    secret: Buffer.alloc(32, 1),
    generation: 7,
    largestBody: 65_536,
    name: 'berlin',
  });
  const masked = envelope.remask(body, 0x5a);
  assert.ok(!masked.subarray(16).equals(body.subarray(16)));
  assert.deepEqual(envelope.decodeEnvelope(masked).content, envelope.decodeEnvelope(body).content);
});

test('7.1: damaged and truncated envelopes are refused, another version is told apart', () => {
  const body = envelope.encodeExchange({
    id: Buffer.alloc(16),
    epoch: Buffer.alloc(8),
    generation: 1,
    lane: 0,
    number: 1,
    serialReceived: 0,
    answerLimit: 1,
  });
  assert.throws(() => envelope.decodeEnvelope(body.subarray(0, -1)), Malformed);
  const damaged = Buffer.from(body);
  damaged[20] ^= 4;
  assert.throws(() => envelope.decodeEnvelope(damaged), Malformed);
  const foreign = Buffer.from(body);
  foreign[4] = 2;
  foreign.writeUInt32BE(0, 12);
  foreign.writeUInt32BE(crc32c(foreign), 12);
  assert.throws(() => envelope.decodeEnvelope(foreign), { foreign: true });
});

test('8.1: a link header', () => {
  const header = encodeLinkHeader(3, 2, 100);
  assert.deepEqual(decodeLinkHeader(header), { number: 3, received: 2, length: 100 });
  header[7] ^= 1;
  assert.equal(decodeLinkHeader(header), null);
});

const CODECS = {
  [TYPE.CONNECT]: [payloads.decodeConnect, payloads.encodeConnect],
  [TYPE.ACCEPTED]: [payloads.decodeAccepted, payloads.encodeAccepted],
  [TYPE.ACK]: [payloads.decodeAck, payloads.encodeAck],
  [TYPE.FINISH]: [payloads.decodeEnd, payloads.encodeEnd],
  [TYPE.CLOSE]: [payloads.decodeEnd, payloads.encodeEnd],
  [TYPE.LISTEN_STATE]: [payloads.decodeListenState, payloads.encodeListenState],
};

function again(bytes) {
  const { packets, discarded } = parseBatch(bytes);
  assert.deepEqual(discarded, {});
  return packets.map((one) => {
    const [decode, encode] = CODECS[one.type] ?? [(payload) => payload, (payload) => payload];
    return encodePacket({ ...one, payload: encode(decode(one.payload)) });
  });
}

function encodeAgain(body) {
  const { kind, flags, content } = envelope.decodeEnvelope(body);
  if (kind === 1) return envelope.encodeAttach(envelope.decodeAttach(content));
  if (kind === 2) return envelope.encodeAttached(envelope.decodeAttached(content));
  const decoded = kind === 3 ? envelope.decodeExchange(content) : envelope.decodeAnswer(content);
  decoded.packets = again(decoded.packets);
  return kind === 3 ? envelope.encodeExchange({ ...decoded, flags }) : envelope.encodeAnswer(decoded, flags);
}

// In the repository the document lies two folders up; TRANSCRIPT names it elsewhere.
const TRANSCRIPT =
  process.env.TRANSCRIPT ??
  ['../../tests/interop/transcript.txt', '../docs/transcript.txt'].find((path) =>
    existsSync(new URL(`../${path}`, import.meta.url)),
  );

test('transcript.txt: every body, decoded and encoded again, is equal', () => {
  assert.ok(TRANSCRIPT, 'tests/interop/transcript.txt is not found; name it in the environment variable TRANSCRIPT');
  const bodies = readTranscript(
    readFileSync(process.env.TRANSCRIPT ? TRANSCRIPT : new URL(`../${TRANSCRIPT}`, import.meta.url), 'utf8'),
  );
  assert.equal(bodies.length, 36);
  for (const { title, bytes } of bodies) assert.equal(encodeAgain(bytes).toString('hex'), bytes.toString('hex'), title);
});
