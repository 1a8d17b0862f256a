// Rules of the two halves of a connection, without a network.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { IntegrityError, Receiver } from '../lib/connection/receiver.mjs';
import { Sender } from '../lib/connection/sender.mjs';
import { StreamDigest } from '../lib/digest.mjs';
import { TYPE } from '../lib/wire/packet.mjs';
import { decodeAck, encodeEnd } from '../lib/wire/payloads.mjs';
import { pair } from './simulation.mjs';

const FIRST = 0xfffffffe; // so that numbers wrap

function opened(window, edge = 1 << 20) {
  const sender = new Sender(FIRST, edge);
  sender.opened(window, 0);
  return sender;
}

function send(sender, limit, now = 0) {
  const sent = [];
  for (;;) {
    const again = sender.again();
    const flight = again ?? sender.nextNew(limit);
    if (!flight) return sent;
    sent.push({ flight, attempt: sender.attempted(flight, now) });
  }
}

const ack = (cumulative, more = {}) => ({
  cumulative: cumulative >>> 0,
  window: 1 << 20,
  delay: 0,
  cause: cumulative >>> 0,
  attempt: 0,
  ranges: [],
  ...more,
});
const payload = (bytes) => bytes.reduce((sum, { flight }) => sum + flight.length, 0);

test('3.6: before ACCEPTED at most 64 KiB leave, in packets of at most 1 KiB, and no FINISH', () => {
  const sender = new Sender(FIRST, 1 << 20);
  sender.write(Buffer.alloc(100_000));
  sender.wantFinish = true;
  const sent = send(sender, 8192);
  assert.equal(payload(sent), 65_536);
  assert.ok(sent.every(({ flight }) => flight.length <= 1024 && flight.type === TYPE.DATA));
});

test('4.1: the window limits what is in flight, and its right edge never moves left', () => {
  const sender = opened(10_000);
  sender.write(Buffer.alloc(50_000));
  assert.equal(payload(send(sender, 4096)), 10_000);
  sender.acknowledge(ack(FIRST + 1, { window: 1000 }), 10);
  assert.equal(sender.windowEnd, 10_000);
  sender.acknowledge(ack(FIRST + 1, { window: 8192 }), 10);
  assert.equal(payload(send(sender, 4096)), 2288);
});

test('4.4: an ACK of packets that were never sent is malformed', () => {
  const sender = opened(10_000);
  sender.write(Buffer.alloc(10));
  send(sender, 4096);
  assert.ok(sender.acknowledge(ack(FIRST + 5), 1).malformed);
  assert.ok(sender.acknowledge(ack(FIRST, { ranges: [[0, 9]] }), 1).malformed);
  assert.equal(sender.acknowledge(ack(FIRST + 1), 1).fresh.length, 1);
});

test('4.11: the edge limits the load on the relay; with none, one packet of 1 KiB may leave', () => {
  const sender = opened(1 << 20, 8192);
  sender.write(Buffer.alloc(50_000));
  assert.equal(payload(send(sender, 4096)), 8192);
  sender.setEdge({ sequence: (FIRST + 1) >>> 0, bytes: 6000 });
  assert.equal(sender.load(), 4096); // the packet up to S left before the EDGE came
  assert.equal(payload(send(sender, 4096)), 1904);
  sender.acknowledge(ack(FIRST + 3), 1);
  sender.setEdge({ sequence: (FIRST + 3) >>> 0, bytes: 0 });
  assert.deepEqual(
    send(sender, 4096).map(({ flight }) => flight.length),
    [1024],
  );
});

test('4.10: after DROPPED(full) with limit 0 nothing leaves until an EDGE', () => {
  const sender = opened(1 << 20);
  sender.write(Buffer.alloc(9000));
  assert.equal(send(sender, 4096).length, 3);
  sender.dropped((FIRST + 2) >>> 0, (FIRST + 3) >>> 0, 0);
  sender.write(Buffer.alloc(100));
  assert.equal(send(sender, 4096).length, 0);
  sender.setEdge({ sequence: (FIRST + 1) >>> 0, bytes: 20_000 });
  assert.deepEqual(
    send(sender, 4096).map(({ attempt }) => attempt.number),
    [1, 1, 0],
  );
});

test('4.10, 4.11: in the pause not even the oldest packet leaves; it ends after one RTO, without a doubling', () => {
  const sender = opened(1 << 20);
  sender.write(Buffer.alloc(9000));
  for (const { flight, attempt } of send(sender, 4096)) sender.recovery.receipted(flight, attempt, 100);
  sender.wantFinish = true;
  sender.dropped((FIRST + 1) >>> 0, (FIRST + 3) >>> 0, 300);
  sender.recovery.handleTimeout(700);
  sender.dropped((FIRST + 2) >>> 0, (FIRST + 2) >>> 0, 700);
  assert.equal(send(sender, 4096).length, 0);
  assert.equal(sender.hasWork(), false);
  assert.equal(sender.recovery.nextTimeout(700), 1700);
  sender.recovery.handleTimeout(1699);
  assert.equal(send(sender, 4096).length, 0);
  sender.recovery.handleTimeout(1700);
  assert.equal(send(sender, 4096).length, 4);
  assert.equal(sender.recovery.interval, 1000);
});

test('4.10: a tail probe waits for the end of the pause; a DROPPED without anything unacknowledged begins none', () => {
  const sender = opened(1 << 20);
  sender.dropped(FIRST, FIRST, 0);
  assert.equal(sender.held, false);
  sender.write(Buffer.alloc(2000));
  const [one, two] = send(sender, 1000);
  for (const { flight, attempt } of [one, two]) sender.recovery.receipted(flight, attempt, 10);
  sender.acknowledge(ack(FIRST + 1), 30);
  sender.dropped((FIRST + 1) >>> 0, (FIRST + 1) >>> 0, 40);
  sender.recovery.handleTimeout(200);
  assert.ok(sender.recovery.tailProbe());
  assert.equal(sender.again(), null);
  sender.setEdge({ sequence: (FIRST + 1) >>> 0, bytes: 5000 });
  assert.equal(sender.again(), two.flight);
});

test('4.8: the reordering window is SRTT with several lanes, and a quarter of it on a link', () => {
  const { opened: connection, a } = pair();
  connection.sender.recovery.rtt.sample(400);
  const { srtt } = connection.sender.recovery.rtt;
  a.endpoint.settings.lanes = 5;
  assert.equal(connection.sender.recovery.reorderingWindow, srtt);
  a.endpoint.settings.lanes = 1;
  assert.equal(connection.sender.recovery.reorderingWindow, srtt / 4);
});

test('2.9: a reason of DROPPED that is not known counts as full', () => {
  const { opened: connection } = pair();
  connection.write(Buffer.from('x'));
  const flight = connection.sender.nextNew(10);
  connection.sender.attempted(flight, 1000);
  const payload = Buffer.alloc(16);
  payload[0] = 77;
  payload.writeUInt32BE(flight.sequence, 4);
  payload.writeUInt32BE(flight.sequence, 8);
  connection.handle({ type: TYPE.DROPPED, payload }, 1001);
  assert.ok(flight.resend && connection.sender.held);
});

test('4.6: the timer runs from the receipt, resends the oldest packet alone, and doubles', () => {
  const sender = opened(1 << 20);
  sender.write(Buffer.alloc(9000));
  const sent = send(sender, 4096);
  assert.equal(sender.recovery.rtoAt(), Infinity);
  for (const { flight, attempt } of sent) sender.recovery.receipted(flight, attempt, 100);
  assert.equal(sender.recovery.rtoAt(), 1100);
  sender.recovery.handleTimeout(1100);
  const again = send(sender, 4096, 1100);
  assert.deepEqual(
    again.map(({ flight }) => flight.sequence),
    [FIRST + 1],
  );
  sender.recovery.receipted(again[0].flight, again[0].attempt, 1200);
  assert.equal(sender.recovery.rtoAt(), 3200);
});

const data = (sequence, text, attempt = 0) => ({
  type: TYPE.DATA,
  sequence: sequence >>> 0,
  attempt,
  payload: Buffer.from(text),
});

test('4.3, 4.4: ranges name the packets kept beyond a gap; a refused packet is not the cause', () => {
  const receiver = new Receiver(100, 50);
  receiver.start(FIRST, 0, 0);
  for (const [number, text] of [
    [2, 'b'],
    [3, 'c'],
    [6, 'f'],
  ])
    receiver.handle(data(FIRST + number, text), 5);
  assert.ok(receiver.ackAt() <= 5);
  const made = decodeAck(receiver.makeAck(5));
  assert.equal(made.cumulative, FIRST);
  assert.deepEqual(made.ranges, [
    [4, 4],
    [0, 1],
  ]);
  receiver.handle(data(FIRST + 7, 'x'.repeat(200)), 6);
  assert.equal(decodeAck(receiver.makeAck(7)).cause, 4);
});

test('2.4: the first range has the packet that arrived last, a repeat included', () => {
  const receiver = new Receiver(1000, 50);
  receiver.start(FIRST, 0, 0);
  const ranges = () => decodeAck(receiver.makeAck(9)).ranges.map((range) => range.map((one) => (one - FIRST) & 0xff));
  for (const number of [9, 3, 6]) receiver.handle(data(FIRST + number, 'x'), 5);
  assert.deepEqual(ranges(), [
    [6, 6],
    [3, 3],
    [9, 9],
  ]);
  receiver.handle(data(FIRST + 9, 'x', 1), 6);
  receiver.handle(data(FIRST + 4, 'x'), 7);
  assert.deepEqual(ranges(), [
    [3, 4],
    [9, 9],
    [6, 6],
  ]);
});

test('2.4: of more than 32 ranges the ones that arrived last are named', () => {
  const receiver = new Receiver(1000, 50);
  receiver.start(FIRST, 0, 0);
  for (let number = 100; number > 2; number -= 2) receiver.handle(data(FIRST + number, 'x'), 5);
  const { ranges } = decodeAck(receiver.makeAck(5));
  assert.equal(ranges.length, 32);
  assert.deepEqual(ranges[0], [2, 2]); // FIRST + 4
});

test('4.12: a window update leaves unasked when enough of the window has opened', () => {
  const receiver = new Receiver(1000, 1 << 20);
  receiver.start(FIRST, 0, 0);
  for (let i = 1; i <= 10; i += 1) receiver.handle(data(FIRST + i, 'x'.repeat(100)), 0);
  assert.equal(decodeAck(receiver.makeAck(0)).window, 0);
  receiver.read();
  receiver.read();
  assert.equal(receiver.ackAt(), Infinity);
  receiver.read();
  assert.equal(receiver.ackAt(), -Infinity);
  assert.equal(decodeAck(receiver.makeAck(0)).window, 300);
});

test('5.1: a wrong digest or length is an integrity error, and a FINISH is not acknowledged before its data', () => {
  const digest = new StreamDigest();
  digest.update(Buffer.from('ab'));
  const end = (length, hash) => ({
    type: TYPE.FINISH,
    sequence: (FIRST + 2) >>> 0,
    attempt: 0,
    payload: encodeEnd({ length, digest: hash }),
  });
  for (const wrong of [end(3, digest.digest()), end(2, Buffer.alloc(16))]) {
    const receiver = new Receiver(100, 50);
    receiver.start(FIRST, 0, 0);
    receiver.handle(wrong, 0); // it comes before the data: it is kept, but in no range
    assert.deepEqual(decodeAck(receiver.makeAck(0)).ranges, []);
    assert.throws(() => receiver.handle(data(FIRST + 1, 'ab'), 0), IntegrityError);
  }
  const receiver = new Receiver(100, 50);
  receiver.start(FIRST, 0, 0);
  receiver.handle(data(FIRST + 1, 'ab'), 0);
  receiver.handle(end(2, digest.digest()), 0);
  assert.ok(receiver.finished);
});
