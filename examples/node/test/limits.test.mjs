// Sizes of bodies and answers (7.16), holds (7.15), and what is proven when a path refuses large bodies silently.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Hold } from '../lib/carrier/hold.mjs';
import { SizeLimit } from '../lib/carrier/limits.mjs';
import { FLAG } from '../lib/wire/envelope.mjs';
import { pollWith, respond } from './scripted.mjs';

const MIB = 1024 * 1024;

/** Full bodies, one after another, each of which takes `time(size)`; returns the sizes. */
function answer(limit, count, time, from = 0) {
  const sizes = [];
  let now = from;
  for (let i = 0; i < count; i += 1) {
    const size = Math.floor(limit.value);
    sizes.push(size);
    now += time(size);
    limit.answered(size, time(size), now);
  }
  return { sizes, now };
}

test('7.16: the limit grows while full bodies are quick, and shrinks to 4 KiB while they are slow', () => {
  const limit = new SizeLimit(MIB);
  answer(limit, 10, () => 50);
  assert.equal(limit.value, MIB);
  answer(limit, 15, (size) => size * 1.2); // 833 bytes a second
  assert.equal(limit.value, 4096);
});

test('7.16: a body that is not full shows nothing', () => {
  const limit = new SizeLimit(MIB);
  for (let i = 0; i < 9; i += 1) limit.answered(100, 5000, i * 5000);
  assert.equal(limit.value, 65_536);
});

test('7.16: a wait that every body has, large or small, does not count as slow', () => {
  const limit = new SizeLimit(MIB);
  const { sizes } = answer(limit, 30, (size) => 2800 + size / 10_000);
  assert.equal(limit.value, MIB);
  assert.ok(Math.min(...sizes) >= 16_384, `${sizes}`);
});

test('7.16: after slow times the limit grows again, even from 4 KiB on a path where every body waits', () => {
  const limit = new SizeLimit(MIB);
  const { now } = answer(limit, 8, (size) => size * 1.2);
  assert.equal(limit.value, 4096);
  answer(limit, 60, (size) => 2800 + size / 10_000, now + 120_000);
  assert.equal(limit.value, MIB);
});

test('7.16: 413 halves the limit, once for several lanes, down to 4 KiB; the size is tried again after 30 s', () => {
  const limit = new SizeLimit(MIB);
  limit.tooLarge(65_536, 1000);
  limit.tooLarge(65_536, 1010);
  assert.equal(limit.value, 32_768);
  limit.answered(32_768, 50, 2000);
  assert.equal(limit.value, 32_768);
  limit.answered(32_768, 50, 31_500);
  assert.equal(limit.value, 65_536);
  limit.tooLarge(65_536, 32_000);
  limit.answered(32_768, 50, 63_000);
  assert.equal(limit.value, 32_768); // the second pause is 60 s
  limit.answered(32_768, 50, 92_500);
  limit.answered(65_536, 50, 93_000); // now it has passed
  assert.equal(limit.value, 131_072);
  limit.tooLarge(131_072, 94_000);
  limit.answered(65_536, 50, 125_000); // the pause is 30 s again, because the size of the first refusals has passed
  assert.equal(limit.value, 131_072);
  for (let size = 131_072; size > 4096; size /= 2) limit.tooLarge(size, 126_000);
  limit.tooLarge(4096, 94_000);
  assert.equal(limit.value, 4096);
});

const isPush = ({ exchange, flags }) => exchange && !(flags & FLAG.PULL);

test('7.16: a path that swallows large bodies is found out, and the packets arrive in smaller ones', () => {
  const passes = (post) => post.size < 20_000;
  const world = pollWith((post) => passes(post) && respond.answer(post, { after: post.exchange.hold || 20 }));
  for (let i = 0; i < 50; i += 1) world.endpoint.waiting.push(Buffer.alloc(1200));
  world.clock.run(120_000);
  assert.equal(world.endpoint.receipted.length, 50);
  assert.ok(world.carrier.bodies.value < 20_000);
  const probes = world.client.posts.filter((post) => !isPush(post) && !post.exchange.hold);
  assert.ok(probes.length >= 2 && probes.length < 60, `${probes.length} probes`);
});

test('7.16: pushes leave lanes for pulls, so that something shows whether small bodies pass', () => {
  const passes = (post) => post.size < 20_000;
  const world = pollWith((post) => passes(post) && respond.answer(post, { after: post.exchange.hold || 20 }));
  for (let i = 0; i < 500; i += 1) world.endpoint.waiting.push(Buffer.alloc(1200));
  world.clock.run(30_000);
  assert.ok(world.carrier.inFlight.filter(({ pull }) => !pull).length >= 3);
  assert.ok(world.client.posts.some((post) => !isPush(post) && post.at > 10_000));
  world.clock.run(180_000);
  assert.equal(world.endpoint.receipted.length, 500);
});

test('7.16: an outage lowers no limit, because small bodies fail, too', () => {
  let up = false;
  const world = pollWith((post) => (up ? respond.answer(post) : null));
  for (let i = 0; i < 50; i += 1) world.endpoint.waiting.push(Buffer.alloc(1200));
  world.clock.run(120_000);
  assert.equal(world.carrier.bodies.value, 65_536);
  up = true;
  world.clock.run(200_000);
  assert.equal(world.endpoint.receipted.length, 50);
});

test('7.16: two exchanges that are answered only with a limit of 4 KiB halve the limit of answers', () => {
  const world = pollWith((post) => {
    if (isPush(post)) return null;
    const { answerLimit } = post.exchange;
    if (answerLimit > 20_000) return respond.reset();
    const packets = [Buffer.alloc(answerLimit - 300)];
    return respond.answer(post, { packets, flags: FLAG.MORE });
  });
  const asked = () => world.client.posts.map(({ exchange }) => exchange.answerLimit);
  world.clock.run(60_000);
  assert.ok(asked().indexOf(4096) === 4, `${asked().slice(0, 10)}`); // the repeat after the fourth failure
  assert.ok(world.carrier.answers.value <= 20_000 && asked().includes(32_768), `${world.carrier.answers.value}`);
});

/** Pulls that are held to their end, without packets, `count` times. */
function held(hold, count) {
  for (let i = 0; i < count; i += 1) {
    hold.answered(hold.next);
    hold.nothingCame();
  }
}

test('7.15: holds double from 1 s to 15 s; after four long ones a trial doubles the longest', () => {
  const hold = new Hold(65_000);
  const asked = [];
  for (let i = 0; i < 6; i += 1) {
    asked.push(hold.next);
    held(hold, 1);
  }
  assert.deepEqual(asked, [1000, 2000, 4000, 8000, 15_000, 15_000]);
  held(hold, 2);
  assert.equal(hold.longest, 30_000);
  held(hold, 1);
  assert.equal(hold.next, 30_000);
  held(hold, 6);
  assert.equal(hold.longest, 55_000);
});

test('7.15: a failure in the trial restores the longest hold, and the next trial needs twice as many pulls', () => {
  const hold = new Hold(65_000);
  held(hold, 8);
  assert.equal(hold.longest, 30_000);
  hold.failed(14_000); // younger than the previous longest hold
  assert.equal(hold.longest, 30_000);
  hold.failed(20_000);
  assert.equal(hold.longest, 15_000);
  held(hold, 7);
  assert.equal(hold.longest, 15_000);
  held(hold, 1);
  assert.equal(hold.longest, 30_000);
});

test('7.15: two failures at a similar age halve the longest hold, one or two unlike ones do not', () => {
  const hold = new Hold(65_000);
  hold.failed(10_000);
  hold.failed(3000);
  assert.equal(hold.longest, 15_000);
  hold.failed(3100);
  assert.equal(hold.longest, 7500);
  for (let i = 0; i < 8; i += 1) hold.failed(2000);
  assert.equal(hold.longest, 2000);
});

test('7.15: where pushes wait until a hold ends, no pull is held for 60 s, and then one is tried again', () => {
  let free = 0; // the path carries one request at a time
  const waits = []; // [time, wait] of each push
  const world = pollWith((post) => {
    const now = world.clock.now();
    free = Math.max(free, now) + (post.exchange.hold || 20);
    if (isPush(post)) waits.push([now, free - now]);
    return respond.answer(post, { after: free - now });
  });
  for (let now = 5000; now < 60_000; now += 1000) {
    world.clock.run(now);
    world.endpoint.waiting.push(Buffer.alloc(10));
    world.wake();
  }
  const holds = (from) => world.client.posts.filter(({ at, exchange }) => at > from && exchange.hold).length;
  assert.ok(Math.max(...waits.map(([, wait]) => wait)) > 3000);
  const late = waits.filter(([at]) => at > 40_000);
  assert.ok(late.length >= 18 && late.every(([, wait]) => wait <= 60), `${late}`);
  assert.equal(holds(40_000), 0);
  world.clock.run(130_000);
  assert.ok(holds(60_000) > 0);
});

test('7.15: a path that cuts held pulls at 10 s teaches a shorter hold; a reset at once does not', () => {
  const world = pollWith((post, posts) => {
    const { hold, lane, number } = post.exchange;
    const first = !posts.some((one) => one !== post && one.exchange.lane === lane && one.exchange.number === number);
    if (!first) return respond.answer(post);
    return hold > 10_000 ? respond.reset(10_000) : respond.answer(post, { after: hold });
  });
  world.clock.run(60_000);
  assert.equal(world.carrier.hold.longest, 7500);
});
