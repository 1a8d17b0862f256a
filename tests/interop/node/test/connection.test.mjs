import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Endpoint } from '../lib/endpoint.mjs';
import { HEADER, TARGET, TYPE, encodePacket, parseBatch } from '../lib/wire.mjs';

/** Two endpoints that pass batches to each other, in steps of 20 ms; `lost(packet)` packets do not arrive. */
function pair({ lost = () => false, change = (bytes) => bytes }) {
  const [ann, bob] = [new Endpoint(), new Endpoint()];
  const world = { ann, bob, now: 0, accepted: null };
  bob.onConnection = (connection) => (world.accepted = connection);
  bob.announce('echo', 1);
  world.opened = ann.open({ kind: TARGET.SERVICE, host: 'echo', port: 0 }, 0);
  world.run = (until) => {
    for (const end = world.now + 200_000; world.now < end && !until(); world.now += 20)
      for (const [from, to] of [[ann, bob], [bob, ann]]) {
        from.handleTimeout(world.now);
        const items = from.fill(65_536, world.now);
        for (const item of items) item.receipted?.(world.now);
        const kept = items.filter(({ bytes }) => !lost(parseBatch(bytes).packets[0])).map(({ bytes }) => change(bytes));
        to.handleBatch(Buffer.concat(kept), world.now);
      }
  };
  return world;
}
function readAll(connection, now, found) {
  for (let bytes; (bytes = connection.read(now));) found.push(bytes);
  return connection.atEnd;
}

test('all bytes arrive and both sides drain, although every fifth packet is lost and the route once, too', () => {
  let count = 0;
  const world = pair({ lost: () => (count += 1) % 5 === 0 });
  const data = Buffer.from('tunnel'.repeat(50_000));
  const found = [];
  world.opened.sender.write(data);
  world.opened.sender.wantFinish = true;
  world.run(() => world.accepted?.receiver.received > 100_000);
  world.ann.attached({ initialEdge: 65_536, largestPacket: 65_536, mostPackets: 0, pullInterval: 0 }, true, world.now);
  world.run(() => world.accepted && readAll(world.accepted, world.now, found));
  assert.ok(Buffer.concat(found).equals(data));
  world.accepted.close(world.now);
  const isOver = () => world.ann.connections.size + world.bob.connections.size === 0;
  world.run(() => readAll(world.opened, world.now, []) && isOver());
  assert.deepEqual([world.opened.error, world.accepted.error, world.opened.state], [null, null, 'dead']);
});
test('5.1: changed bytes end the connection with an error on both sides', () => {
  const other = ({ payload, ...packet }) => encodePacket({ ...packet, values: payload.map((byte) => byte ^ 1) });
  const world = pair({ change: (bytes) => (bytes[3] === TYPE.DATA ? other(parseBatch(bytes).packets[0]) : bytes) });
  world.opened.sender.write(Buffer.alloc(HEADER));
  world.opened.sender.wantFinish = true;
  world.run(() => world.opened.dead);
  assert.match(world.opened.error.message, /another length or digest/);
  assert.match(world.accepted.error.message, /another length or digest/);
});
test('3.10: a service that is not offered is rejected', () => {
  const world = pair({});
  const connection = world.ann.open({ kind: TARGET.SERVICE, host: 'absent', port: 0 }, 0);
  world.run(() => connection.dead);
  assert.equal(connection.error.message, 'no such service');
});
