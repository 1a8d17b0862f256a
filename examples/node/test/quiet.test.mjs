// Keepalive, PROBE and the user timeout, over simulated minutes.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { TYPE } from '../lib/wire/packet.mjs';
import { pair } from './simulation.mjs';

const count = (seen, type) => seen.filter((one) => one.type === type).length;

test('4.16: an idle connection lives by PING and PONG', () => {
  const { opened, accepted, seen, run } = pair();
  run(1_000_000);
  assert.equal(opened.state, 'open');
  assert.equal(accepted.state, 'open');
  assert.ok(count(seen, TYPE.PING) >= 15 && count(seen, TYPE.PING) <= 40, `${count(seen, TYPE.PING)} PINGs`);
  assert.ok(count(seen, TYPE.PONG) >= 15);
});

test('4.15: without an answer the connection is lost after the user timeout', () => {
  const { network, opened, accepted, run } = pair();
  network.faults.lost = 1;
  opened.write(Buffer.from('x'));
  run(250_000);
  assert.equal(opened.state, 'open');
  run(500_000);
  assert.equal(opened.state, 'dead');
  assert.match(opened.error.message, /300 s/);
  assert.equal(accepted.state, 'dead');
});

test('4.12: a closed window is probed at doubling intervals, and opens again', () => {
  const { network, opened, accepted, seen, run } = pair(20_000);
  opened.write(Buffer.alloc(50_000, 7));
  run(30_000);
  assert.equal(accepted.receiver.unreadBytes, 20_000);
  const probes = count(seen, TYPE.PROBE);
  assert.ok(probes >= 3 && probes <= 6, `${probes} PROBEs`);
  let read = 0;
  const done = () => {
    for (let bytes; (bytes = accepted.read(network.clock.now));) read += bytes.length;
    return read === 50_000;
  };
  assert.ok(run(40_000, done));
});
