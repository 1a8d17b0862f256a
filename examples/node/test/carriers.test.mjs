// Whole connections over real carriers, in simulated time: exchanges and links that fail, and a relay that restarts.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Endpoint } from '../lib/endpoint/endpoint.mjs';
import { Identity } from '../lib/endpoint/identity.mjs';
import { UP } from '../lib/endpoint/services.mjs';
import { Runtime } from '../lib/runtime.mjs';
import { TARGET } from '../lib/wire/payloads.mjs';
import { SmallRelay } from './relay.mjs';
import { SimulatedClock } from './scripted.mjs';
import { application, generator } from './simulation.mjs';

const SEEDS = Math.ceil(Number(process.env.SEEDS ?? 100) / 10);
const STEP = 25; // ms between two looks at the applications
const UNTIL = 900_000;
const QUIET = { request: 0, response: 0, refuse: 0, largest: Infinity, upgrade: 0, blind: 0, cut: 0 };
const LOSSY = { ...QUIET, request: 0.05, response: 0.05 };

function member(world, carrier) {
  const { clock, random, relay } = world;
  const endpoint = new Endpoint({
    settings: { largestPacket: 65_536, window: 20_000 + random.below(200_000) },
    identity: new Identity(random.bytes(32)),
    random: random.u32,
    routeKey: () => random.bytes(16),
  });
  const runtime = new Runtime({ carrier, clock, client: relay.client(), endpoint });
  runtime.start();
  return { runtime, received: [], log: [], now: () => clock.now() };
}

function use(party, connection, data, random) {
  connection.app = (event) => party.log.push(event);
  party.connection = connection;
  const step = application(party, connection, data, 'finish', random);
  party.step = () => {
    step();
    party.runtime.wake();
  };
}

/** Send `size` bytes each way over `carrier`, and return what arrived. */
function converse(seed, { faults, carrier = 'auto', size = 60_000, restarts = 0 }) {
  const random = generator(seed);
  const clock = new SimulatedClock();
  const world = { clock, random, relay: new SmallRelay(clock, random, faults) };
  const [a, b] = [member(world, carrier), member(world, carrier)];
  const data = [random.bytes(1 + random.below(size)), random.bytes(1 + random.below(size))];
  b.runtime.endpoint.services.announce('s', UP, 8);
  b.runtime.endpoint.onConnection = (connection) => use(b, connection, data[1], random);
  clock.run(3000);
  use(a, a.runtime.endpoint.open({ kind: TARGET.SERVICE, host: 's' }, clock.now()), data[0], random);
  for (let i = 0; i < restarts; i += 1) clock.after(random.below(10_000), () => world.relay.restart());
  const busy = () => !b.connection || [a, b].some(({ runtime }) => runtime.endpoint.connections.size);
  while (busy() && clock.now() < UNTIL) {
    a.step();
    b.step?.();
    clock.run(clock.now() + STEP);
  }
  a.step();
  b.step?.();
  for (const { runtime } of [a, b]) runtime.close();
  const received = [Buffer.concat(b.received), Buffer.concat(a.received)];
  return { at: clock.now(), over: !busy(), data, received, a, b };
}

function check(name, options, verify = () => {}) {
  test(name, (t) => {
    const { random } = Math;
    t.after(() => {
      Math.random = random;
    });
    for (let seed = 1; seed <= SEEDS; seed += 1) {
      Math.random = generator(seed).next; // carriers draw their pauses
      const result = converse(seed, options);
      const where = `seed ${seed}`;
      for (const { log, connection } of [result.a, result.b]) {
        assert.equal(connection?.error, null, `${where}: ${connection?.error}`);
        assert.ok(!log.includes('lost') && !log.includes('reset'), `${where}: ${log}`);
      }
      assert.ok(result.over, `${where}: not over at ${result.at} ms`);
      assert.ok(result.data[0].equals(result.received[0]), `${where}: bytes to the acceptor`);
      assert.ok(result.data[1].equals(result.received[1]), `${where}: bytes to the initiator`);
      verify(result, where);
    }
  });
}

check('a link that works carries everything', { faults: QUIET }, ({ a }, where) => {
  assert.equal(a.runtime.carrier.counts.links, 1, where);
});
check('exchanges carry everything where no link opens', { faults: { ...LOSSY, upgrade: 1 } }, ({ a }, where) => {
  assert.equal(a.runtime.carrier.counts.links, 0, where);
});
check('links that go blind or are cut lose nothing', { faults: { ...LOSSY, blind: 0.4, cut: 0.6 }, size: 400_000 });
const FRAIL = { ...QUIET, blind: 0.4, cut: 0.6 };
check('the carrier "link" loses nothing either', { faults: FRAIL, carrier: 'link', size: 400_000 });
check('an intermediary that refuses a tenth of the requests loses nothing', { faults: { ...LOSSY, refuse: 0.1 } });
check('connections survive a relay that restarts twice', { faults: { ...LOSSY, upgrade: 0.5, cut: 0.3 }, restarts: 2 });
check(
  'a path that swallows bodies above 12,000 bytes is found out',
  { faults: { ...QUIET, upgrade: 1, largest: 12_000 }, size: 300_000 },
  ({ at }, where) => assert.ok(at < 240_000, `${where}: ${at} ms`),
);
