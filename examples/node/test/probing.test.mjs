// Waiting for acknowledgements (4.17), and pull intervals: OPTION (2.7) and the timers that depend on them (4.6).

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parse } from '../lib/command/arguments.mjs';
import { PollCarrier } from '../lib/carrier/poll.mjs';
import { CLOCK } from '../lib/clock.mjs';
import { Endpoint } from '../lib/endpoint/endpoint.mjs';
import { FLAG } from '../lib/wire/envelope.mjs';
import { TYPE, encodePacket, parseBatch } from '../lib/wire/packet.mjs';
import { decodeOptionPacket, encodeOption } from '../lib/wire/payloads.mjs';
import { INFO, respond, surroundings } from './scripted.mjs';
import { pair } from './simulation.mjs';

test('4.17: PROBE leaves in the batch of the last packet that the application waits for, once', () => {
  const { opened, seen, run } = pair();
  opened.write(Buffer.alloc(30_000)); // more than one batch
  opened.confirm();
  const acknowledged = () => opened.events.includes('acknowledged');
  assert.ok(run(3000, acknowledged));
  const probes = seen.filter(({ type }) => type === TYPE.PROBE);
  const last = seen.filter(({ type }) => type === TYPE.DATA).pop();
  assert.equal(probes.length, 1);
  assert.equal(probes[0].batch, last.batch);
  opened.events.length = 0;
  opened.confirm(); // nothing is outstanding
  assert.ok(acknowledged());
  run(10_000);
  assert.equal(seen.filter(({ type }) => type === TYPE.PROBE).length, 1);
});

test('4.17: with PROBE the acknowledgement does not wait for a delayed ACK', () => {
  const delays = [false, true].map((confirm) => {
    const { network, opened, run } = pair();
    opened.write(Buffer.from('first'));
    run(1060); // a short time ago an ACK has left, so the next one is delayed
    const from = network.clock.now;
    opened.write(Buffer.from('x'));
    if (confirm) opened.confirm();
    run(3000, () => !opened.sender.queued && !opened.sender.flights.oldest());
    return network.clock.now - from;
  });
  assert.ok(delays[1] < delays[0], `${delays}`);
});

test('4.17: a PROBE whose packet has left already leaves alone, and it is not repeated when it is lost', () => {
  const { network, opened, seen, run } = pair();
  opened.write(Buffer.from('x'));
  run(1002);
  network.faults.givenUp = 1;
  opened.confirm();
  run(1030);
  network.faults.givenUp = 0;
  assert.ok(run(9000, () => opened.events.includes('acknowledged')));
  const probes = seen.filter(({ type }) => type === TYPE.PROBE);
  assert.equal(probes.length, 1);
  assert.deepEqual(probes[0].batch.packets.length, 1);
});

const options = (seen, from) =>
  seen.filter((one) => one.type === TYPE.OPTION && one.from === from).map(({ payload }) => decodeOptionPacket(payload));

test('2.7: a new pull interval is told to the peer, whose timers add it, up to 60 s', () => {
  const { a, opened, accepted, seen, run } = pair();
  a.endpoint.usePullInterval(5000);
  run(2000);
  assert.deepEqual(options(seen, a), [{ version: 1, options: { pullInterval: 5000 } }]);
  assert.equal(accepted.sender.recovery.pulls, 5000);
  assert.equal(opened.sender.recovery.pulls, 5000);
  a.endpoint.usePullInterval(90_000);
  a.endpoint.usePullInterval(90_000);
  run(10_000);
  assert.equal(accepted.sender.recovery.pulls, 60_000);
  assert.equal(options(seen, a).length, 2);
});

test('2.7, 3.6: OPTION waits for ACCEPTED, and none leaves after CLOSE', () => {
  const { network, a, opened, seen, run } = pair();
  const early = a.endpoint.open({ kind: 2, host: 's' }, network.clock.now);
  a.endpoint.usePullInterval(700);
  assert.equal(early.hasData(), false);
  opened.close(network.clock.now);
  run(3000);
  const told = options(seen, a).map((one) => one.options.pullInterval);
  assert.ok(told.length >= 1 && told.every((one) => one === 700));
  a.endpoint.usePullInterval(800);
  run(6000);
  assert.equal(options(seen, a).filter((one) => one.options.pullInterval === 800).length, 1); // on `early` alone
});

/** The OPTION packets of the attachment that an endpoint has sent: [time, version, interval]. */
function sentOptions(endpoint, until, on = () => {}) {
  const sent = [];
  for (let now = 0; now <= until; now += 100) {
    endpoint.handleTimeout(now);
    const batch = endpoint.hasWork(now) && endpoint.fill(4000, now);
    for (const bytes of batch?.packets ?? []) {
      const [packet] = parseBatch(bytes).packets;
      const { version, options: told } = decodeOptionPacket(packet.payload);
      assert.deepEqual([packet.source, packet.destination, packet.sequence], [0, 0, 0]);
      sent.push([now, version, told.pullInterval]);
    }
    on(now);
  }
  return sent;
}

const answer = (version, pullInterval) =>
  encodePacket({ type: TYPE.OPTION, payload: encodeOption({ version, options: { pullInterval } }) });

test('2.7: OPTION of the attachment is repeated after 1, 2, 4 ... s until the relay answers it', () => {
  const endpoint = new Endpoint();
  endpoint.interval.ask(5000);
  const sent = sentOptions(endpoint, 20_000, (now) => {
    if (now === 8000) endpoint.handleBatch(answer(1, 6000), now);
  });
  assert.deepEqual(
    sent.map(([at]) => at),
    [0, 1000, 3000, 7000],
  );
  assert.equal(endpoint.settings.pullInterval, 6000);
});

test('2.7: an answer with another version is ignored, and a later question has a higher one', () => {
  const endpoint = new Endpoint();
  endpoint.interval.ask(5000);
  endpoint.interval.ask(0);
  const sent = sentOptions(endpoint, 500, (now) => endpoint.handleBatch(answer(1, 5000), now));
  assert.deepEqual(sent, [[0, 2, 0]]);
  assert.equal(endpoint.settings.pullInterval, 0);
});

test('7.11: with a pull interval pulls leave at that interval without a hold; 0 holds them again', () => {
  const world = surroundings((post) => respond.answer(post, { after: post.exchange.hold || 20 }));
  world.endpoint.settings.pullInterval = 2000;
  world.start(PollCarrier);
  world.clock.run(9500);
  const pulls = () => world.client.posts.filter(({ flags }) => flags & FLAG.PULL);
  assert.deepEqual(
    pulls().map(({ at, exchange }) => [at, exchange.hold]),
    [0, 2000, 4000, 6000, 8000].map((at) => [at, 0]),
  );
  world.endpoint.settings.pullInterval = 0;
  world.wake();
  world.clock.run(9600);
  assert.ok(pulls().pop().exchange.hold > 0);
  assert.ok(INFO.largestHold >= pulls().pop().exchange.hold);
});

test('a pull interval beyond what a timer can hold does not fire at once', async () => {
  let fired = false;
  const cancel = CLOCK.after(0xffffffff, () => {
    fired = true;
  });
  await new Promise((resolve) => {
    CLOCK.after(10, resolve);
  });
  cancel();
  assert.equal(fired, false);
});

test('on a single lane no pull is held, because pushes would wait for it', () => {
  const world = surroundings((post) => respond.answer(post, { after: post.exchange.hold || 20 }));
  world.start(PollCarrier, { ...INFO, lanes: 1 });
  world.clock.run(10_000);
  assert.ok(world.client.posts.length > 5 && world.client.posts.length < 40, `${world.client.posts.length}`);
  assert.ok(world.client.posts.every(({ exchange }) => !exchange.hold));
  world.endpoint.waiting.push(Buffer.alloc(10));
  world.wake();
  world.clock.run(10_100);
  assert.equal(world.endpoint.receipted.length, 1);
});

test('--pull-interval and --linger are numbers of seconds', () => {
  const line = (...more) => parse(['connect', '--relay', 'http://127.0.0.1:1', ...more, '127.0.0.1:2']);
  assert.equal(line('--pull-interval', '2.5').pullInterval, 2500);
  assert.deepEqual([line().longestDrain, line('--linger', '0').longestDrain], [Infinity, 0]);
  assert.equal(line().carrier, 'auto');
  for (const wrong of ['-1', '1e3', '', 'x', '100000']) assert.throws(() => line('--linger', wrong), /--linger/);
});
