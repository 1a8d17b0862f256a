// The link (section 8) and the change between a link and exchanges (8.0, 8.6), with a scripted relay.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { AutoCarrier } from '../lib/carrier/auto.mjs';
import { LinkCarrier } from '../lib/carrier/link-only.mjs';
import { Link } from '../lib/carrier/link.mjs';
import { FLAG } from '../lib/wire/envelope.mjs';
import { INFO, LinkSocket, respond, surroundings } from './scripted.mjs';

const isPush = ({ exchange, flags }) => exchange && !(flags & FLAG.PULL);

function openLink() {
  const around = surroundings(() => null);
  const socket = new LinkSocket(around.clock);
  const ends = [];
  const owner = {
    ...around,
    info: INFO,
    wake() {},
    opened() {},
    receipted() {},
    ended: (_, why) => ends.push(why),
  };
  const link = new Link(owner, socket);
  link.start();
  socket.accept();
  return { ...around, socket, link, ends };
}

test('8.4: an endpoint is never silent on an open link for more than 20 s', () => {
  const { clock, socket, ends } = openLink();
  clock.run(100_000);
  const times = [0, ...socket.frames.map(({ at }) => at), 100_000];
  for (let i = 1; i < times.length; i += 1) assert.ok(times[i] - times[i - 1] <= 20_000, `${times}`);
  assert.ok(socket.frames.every(({ number, length }) => !number && !length));
  assert.ok(socket.frames.length <= 6);
  assert.deepEqual(ends, []);
});

test('8.6: at most 64 KiB leave before receipts for as much have come', () => {
  const { link, socket, endpoint } = openLink();
  for (let i = 0; i < 300; i += 1) endpoint.waiting.push(Buffer.alloc(1000));
  const sent = () => socket.frames.reduce((sum, { length }) => sum + length, 0);
  link.pump(0);
  assert.ok(sent() > 60_000 && sent() <= 65_536, `${sent()}`);
  const first = sent();
  socket.confirm(socket.newest);
  link.pump(0);
  assert.ok(sent() - first <= 65_536);
  socket.confirm(socket.newest);
  link.pump(0);
  assert.equal(sent(), 300_000);
});

/** A world with both carriers: exchanges work, and `links` lists the sockets of the links that opened. */
function both(onUpgrade) {
  const world = surroundings((post) => respond.answer(post, { after: post.exchange.hold || 20 }));
  const links = [];
  world.client.upgrade = (done) => {
    const index = world.client.upgrades.push(world.clock.now()) - 1;
    const accept = () => {
      const socket = new LinkSocket(world.clock);
      links.push(socket);
      socket.onFrame = (frame) => frame.number && world.clock.after(20, () => socket.confirm(frame.number));
      done(null, { status: 101, headers: {}, socket });
      return socket;
    };
    world.clock.after(20, () => onUpgrade({ accept, done, index }));
    return () => {};
  };
  const carrier = world.start(AutoCarrier);
  const write = (count = 1) => {
    for (let i = 0; i < count; i += 1) world.endpoint.waiting.push(Buffer.alloc(100));
    world.wake();
  };
  const pushes = () => world.client.posts.filter(isPush).length;
  const pulls = () => world.client.posts.length - pushes();
  return { ...world, carrier, links, write, pushes, pulls };
}

test('8.0: while a link works it carries everything, and nothing is pulled', () => {
  const world = both(({ accept }) => accept().accept());
  world.clock.run(3000);
  const pulls = world.pulls();
  assert.equal(world.endpoint.settings.lanes, 1); // 4.8
  world.write(20);
  world.clock.run(60_000);
  assert.equal(world.pushes(), 0);
  assert.equal(world.pulls(), pulls);
  assert.equal(world.endpoint.receipted.length, 20);
  assert.equal(world.carrier.counts.doubts, 0);
});

const refused = { status: 426, headers: {}, body: Buffer.from('no upgrade here') };

test('8.0: where no link opens, exchanges carry everything; tries rest 1, 2, 4 ... s', () => {
  const world = both(({ done }) => done(null, refused));
  world.write(3);
  world.clock.run(60_000);
  assert.equal(world.endpoint.receipted.length, 3);
  assert.deepEqual(world.reports.fatal, []);
  const gaps = world.client.upgrades.slice(1).map((at, i) => Math.round((at - world.client.upgrades[i]) / 1000));
  assert.deepEqual(gaps, [1, 2, 4, 8, 16]);
});

test('8.0: a STATUS on a link has no consequence for the attachment', () => {
  const world = both(({ accept }) => accept().emit('data', respond.status(1, 404).body));
  world.write();
  world.clock.run(2000);
  assert.deepEqual(world.reports.reattach, []);
  assert.equal(world.endpoint.receipted.length, 1);
});

test('8.6: an upgrade that never answers is given up after 3 s, with or without a response 101', () => {
  for (const onUpgrade of [() => {}, ({ accept }) => accept()]) {
    const world = both(onUpgrade);
    world.clock.run(4500);
    assert.equal(world.client.upgrades.length, 2);
    assert.ok(world.client.upgrades[1] >= 4000);
    assert.ok(world.links.slice(0, 1).every(({ destroyed }) => destroyed));
  }
});

test('7.9: after 407 no further link is tried', () => {
  const world = both(({ done }) => done(null, { ...refused, status: 407 }));
  world.clock.run(100_000);
  assert.equal(world.client.upgrades.length, 1);
});

test('8.6: a link without receipts is doubted, exchanges carry what it held, and it closes after 10 s', () => {
  const world = both(({ accept }) => accept().accept());
  world.write();
  world.clock.run(2000);
  const [socket] = world.links;
  socket.onFrame = () => {}; // the path swallows everything from now on
  world.write(5);
  world.clock.run(3900);
  assert.equal(world.endpoint.lost.length, 5);
  assert.equal(world.endpoint.receipted.length, 6);
  assert.ok(world.pushes() > 0 && world.pulls() > 0 && !socket.destroyed);
  assert.equal(world.endpoint.settings.lanes, 5);
  world.clock.run(12_200);
  assert.ok(socket.destroyed);
  world.clock.run(13_000);
  assert.equal(world.links.length, 2); // it has been in use, so it rests for 0.1 s only
  const pushes = world.pushes();
  world.write(5);
  world.clock.run(14_000);
  assert.equal(world.pushes(), pushes);
});

test('8.6: when a receipt comes after all, the link is used again, and the next doubt comes later', () => {
  const world = both(({ accept }) => accept().accept());
  world.write();
  world.clock.run(2000);
  const [socket] = world.links;
  socket.onFrame = () => {};
  world.write();
  world.clock.run(3500);
  assert.equal(world.carrier.counts.doubts, 1);
  socket.confirm(socket.newest);
  world.write();
  world.clock.run(5000);
  assert.equal(world.carrier.counts.doubts, 1);
  world.clock.run(5600);
  assert.equal(world.carrier.counts.doubts, 2);
});

test('8.6: an idle link is tested: after 1 s without a batch, and after 15 s without a receipt', () => {
  const world = both(({ accept }) => accept().accept());
  world.clock.run(40_000);
  const batches = world.links[0].frames.filter(({ number }) => number).map(({ at }) => Math.round(at / 1000));
  assert.deepEqual(batches, [1, 16, 31]);
});

test('8.6: a try that takes the turn of an exchange is given up; the next ones begin when no pull is held', () => {
  let free = 0; // the path carries one request at a time, and an upgrade blocks it for 2 s
  const world = surroundings((post) => {
    const now = world.clock.now();
    free = Math.max(free, now) + (post.exchange.hold || 20);
    return respond.answer(post, { after: free - now });
  });
  const tries = [];
  let carrier = null;
  world.client.upgrade = () => {
    const now = world.clock.now();
    free = Math.max(free, now) + 2000;
    const one = { from: now, held: carrier?.poll.holding ?? false };
    tries.push(one);
    return () => {
      one.until = world.clock.now();
    };
  };
  carrier = world.start(AutoCarrier);
  world.clock.run(100_000);
  const during = ({ from, until }) => world.client.posts.filter(({ at }) => at > from && at < until);
  assert.ok(tries.length >= 4 && tries[0].until < 3000, JSON.stringify(tries));
  for (const one of tries.slice(1)) {
    assert.ok(!one.held);
    assert.ok(during(one).every(({ exchange }) => !exchange.hold));
  }
});

test('8.6: after the endpoint has attached again, it opens the link within 2 s', () => {
  const world = both(({ accept }) => accept().accept());
  world.clock.run(5000);
  world.carrier.stop();
  assert.ok(world.links[0].destroyed);
  world.carrier.start(INFO);
  world.wake();
  world.clock.run(7100);
  assert.equal(world.links.length, 2);
});

test('8.0: the carrier "link" reports what no link opens on, and goes on after a link has ended', () => {
  const world = surroundings(() => null);
  const carrier = world.start(LinkCarrier);
  const socket = new LinkSocket(world.clock);
  world.client.upgrades[0](null, { status: 101, headers: {}, socket });
  socket.accept();
  world.clock.run(17_000);
  assert.equal(socket.newest, 1); // a NOOP asks for a receipt
  world.clock.run(30_000);
  assert.ok(socket.destroyed);
  assert.equal(carrier.counts.links, 1);
  world.client.upgrades[1](null, refused);
  assert.equal(world.reports.fatal.length, 1);
});
