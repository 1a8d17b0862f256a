// The end of a connection: SHUTDOWN, the drain, and a program that waits for its peer (5.7).

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { linger } from '../lib/command/connect.mjs';
import { TYPE } from '../lib/wire/packet.mjs';
import { pair } from './simulation.mjs';

const USER_TIMEOUT = 300_000;
const types = (packets) => packets.map(({ type, attempt }) => [type, attempt]);

/** Both sides drain: `opened` has closed, and from then on only `passes` packets arrive. */
function closed(passes) {
  const world = pair();
  const { network, b, opened, accepted, run } = world;
  const { handleBatch } = b.endpoint;
  opened.close(network.clock.now);
  run(2000, () => accepted.receiver.closed);
  b.endpoint.handleBatch = (bytes, now) => (passes() ? handleBatch.call(b.endpoint, bytes, now) : 0);
  accepted.read(network.clock.now);
  run(network.clock.now + 100, () => opened.state === 'drain');
  return { ...world, shutdowns: (from) => world.seen.filter((one) => one.from === from && one.type === TYPE.SHUTDOWN) };
}

test('5.7: SHUTDOWN is repeated with rising attempts until the peer answers', () => {
  let passes = false;
  const { a, opened, accepted, shutdowns, run } = closed(() => passes);
  assert.deepEqual([opened.state, accepted.state], ['drain', 'drain']);
  run(20_000);
  assert.deepEqual(types(shutdowns(a)), [0, 1, 2, 3, 4].map((attempt) => [TYPE.SHUTDOWN, attempt]));
  passes = true;
  run(40_000);
  assert.deepEqual([opened.state, accepted.state], ['dead', 'dead']);
});

test('5.7: at the end of the drain a last SHUTDOWN leaves with attempt 0, even if none has left before', () => {
  const { network, a, b, opened, accepted, shutdowns, run } = closed(() => false);
  assert.equal(shutdowns(b).length, 0);
  a.endpoint.handleBatch = () => 0;
  run(network.clock.now + USER_TIMEOUT - 1000);
  assert.deepEqual([opened.state, accepted.state], ['drain', 'drain']);
  run(network.clock.now + 2000);
  assert.deepEqual([opened.state, accepted.state], ['dead', 'dead']);
  assert.deepEqual(types(shutdowns(b)), [[TYPE.SHUTDOWN, 0]]);
  assert.deepEqual(types(shutdowns(a)).pop(), [TYPE.SHUTDOWN, 0]);
});

test('5.7: a lost route prolongs the drain to the user timeout, and a resume starts the drain time again', () => {
  const { network, b, accepted, shutdowns, run } = closed(() => false);
  const began = network.clock.now;
  run(began + 200_000);
  accepted.loseRoute(network.clock.now);
  run(began + USER_TIMEOUT + 100_000);
  assert.equal(accepted.state, 'drain');
  accepted.routeBound(network.clock.now);
  run(began + 2 * USER_TIMEOUT + 90_000);
  assert.equal(accepted.state, 'drain');
  run(began + 2 * USER_TIMEOUT + 110_000);
  assert.equal(accepted.state, 'dead');
  assert.deepEqual(types(shutdowns(b)), [[TYPE.SHUTDOWN, 0]]);
});

test('5.7, 6.5: while the route is lost, SHUTDOWN is not repeated, but the last one leaves', () => {
  const { network, a, opened, shutdowns, run } = closed(() => false);
  a.endpoint.handleBatch = () => 0;
  opened.loseRoute(network.clock.now);
  const before = shutdowns(a).length;
  run(network.clock.now + USER_TIMEOUT - 1000);
  assert.equal(shutdowns(a).length, before);
  run(network.clock.now + 2000);
  assert.deepEqual(types(shutdowns(a)).slice(before), [[TYPE.SHUTDOWN, 0]]);
  assert.equal(opened.state, 'dead');
});

/** A runtime whose clock goes on by one second whenever it is asked, and whose connection is forgotten at `end`. */
function clockwork(end) {
  let now = 0;
  const connections = { size: 1 };
  return {
    endpoint: { connections, outbox: [] },
    carrier: { busy: false },
    get now() {
      now += 1000;
      if (now >= end) connections.size = 0;
      return now;
    },
    get asked() {
      return now;
    },
  };
}

test('5.7: connect waits until the connection is forgotten, or as long as --linger says', async () => {
  const patient = clockwork(20_000);
  await linger(patient, Infinity);
  assert.ok(patient.asked >= 20_000);
  const hasty = clockwork(20_000);
  await linger(hasty, 5000);
  assert.ok(hasty.asked < 20_000 && hasty.asked >= 5000);
});
