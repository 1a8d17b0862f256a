// Repeats of an exchange (7.8) and what responses mean (7.9, 7.10), with a scripted relay.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Attachment } from '../lib/carrier/attachment.mjs';
import { RESULT, interpret } from '../lib/carrier/response.mjs';
import { FLAG, encodeAttached } from '../lib/wire/envelope.mjs';
import { pollWith, respond, surroundings } from './scripted.mjs';

const ATTACHED = {
  id: Buffer.alloc(16, 1),
  fresh: true,
  streams: false,
  mostPackets: 1024,
  largestBody: 65_536,
  largestPacket: 65_536,
  largestHold: 65_000,
  pullInterval: 0,
  initialEdge: 65_536,
  lanes: 8,
  version: 1,
};
const isPush = ({ exchange, flags }) => exchange && !(flags & FLAG.PULL);

/** A poll carrier that pushes one packet of `size` bytes; `script` answers the push, pulls are held. */
function pushing(size, script) {
  const pushes = [];
  const world = pollWith((post) => {
    if (!isPush(post)) return null;
    pushes.push(post);
    return script(post, pushes.length);
  });
  world.endpoint.waiting.push(Buffer.alloc(size));
  return { ...world, pushes };
}

const gaps = (posts) => posts.slice(1).map((post, index) => post.at - posts[index].at);

test('7.8: T doubles with each repeat after the first, up to 125 us for each byte', () => {
  const { clock, pushes } = pushing(40_000, () => null);
  clock.run(60_000);
  const [deadline, ...later] = gaps(pushes);
  assert.equal(deadline, 1000);
  const expected = [1000, 2000, 4000, 5000, 5000, 5000];
  expected.forEach((most, index) => {
    assert.ok(later[index] >= most * 0.75 && later[index] <= most * 1.01, `interval ${index}: ${later[index]}`);
  });
});

test('7.8: repeats that follow reported failures do not double T', () => {
  const { clock, pushes } = pushing(60_000, (post, count) => (count <= 6 ? respond.reset() : null));
  clock.run(20_000);
  const later = gaps(pushes.slice(6));
  assert.ok(later[0] >= 750 && later[0] <= 1000, `${later}`);
  assert.ok(later[1] >= 1500 && later[1] <= 2000, `${later}`);
});

test('7.8: the interval of a small body does not double', () => {
  const { clock, pushes } = pushing(100, () => null);
  clock.run(30_000);
  assert.ok(gaps(pushes).every((gap) => gap >= 750 && gap <= 1000), gaps(pushes).join(' '));
});

test('7.8: three attempts are open; the second oldest is given up until the oldest is 8 s old', () => {
  const { clock, pushes } = pushing(100, () => null);
  clock.run(7000);
  assert.ok(pushes[0].open && !pushes[1].open);
  assert.equal(pushes.filter((post) => post.open).length, 3);
  clock.run(9500);
  assert.ok(!pushes[0].open);
  assert.equal(pushes.filter((post) => post.open).length, 3);
});

test('7.8: an exchange that has missed its deadline is repeated soon after the path works again', () => {
  let works = false;
  const { clock, pushes, endpoint, wake } = pushing(60_000, (post) => (works ? respond.answer(post) : null));
  while (pushes.length < 6) clock.run(clock.now() + 10);
  clock.run(clock.now() + 1100); // the next repeat by itself leaves 5 s after the last one or later
  works = true;
  endpoint.waiting.push(Buffer.alloc(10));
  wake();
  clock.run(clock.now() + 200);
  const first = pushes.filter(({ exchange }) => exchange.lane === pushes[0].exchange.lane);
  assert.equal(first.length, 7);
  assert.equal(endpoint.receipted.length, 2);
});

test('7.8: the time of a repeated exchange is that of the attempt that was answered, so the deadline grows', () => {
  const { clock, times } = pushing(100, (post) => respond.answer(post, { after: 1500 }));
  clock.run(2000);
  assert.equal(times.srtt, 1500);
});

test('7.7: when an exchange was answered only by a repeat, a pull that was held before it is repeated, once', () => {
  const world = pushing(100, (post, count) => (count === 1 ? null : respond.answer(post)));
  world.clock.run(10_000);
  const pulls = world.client.posts.filter((post) => !isPush(post));
  assert.ok(pulls.length >= 2 && pulls[1].at < 1200, `${pulls.map(({ at }) => at)}`);
});

test('7.9: a refusal after the first attach is a failure; repeats are masked, and the eighth ends the batch', () => {
  const { clock, pushes, endpoint, reports, carrier } = pushing(100, (post, count) =>
    count <= 8 ? respond.page(403) : respond.answer(post),
  );
  clock.run(20_000);
  assert.deepEqual(reports.fatal, []);
  assert.deepEqual(
    pushes.slice(0, 9).map(({ masked }) => masked),
    [false, true, true, true, true, true, true, true, false],
  );
  assert.equal(endpoint.lost.length, 1);
  assert.equal(endpoint.receipted.length, 1);
  const lane = pushes[0].exchange.lane;
  assert.deepEqual([pushes[7].exchange.number, pushes[8].exchange.number], [1, 2]);
  assert.equal(carrier.lanes[lane].number, 2);
});

test('7.9: 407 stays final after the attach', () => {
  const { clock, reports } = pushing(100, () => respond.page(407));
  clock.run(1000);
  assert.equal(reports.fatal.length, 1);
});

function attaching(script) {
  const { clock, client, times } = surroundings(script);
  const fatal = [];
  const attached = [];
  const attachment = new Attachment({
    client,
    clock,
    times,
    identity: { secret: Buffer.alloc(32) },
    name: '',
    pullInterval: 0,
    attached: (info) => attached.push(info),
    fatal: (why) => fatal.push(why),
    trouble() {},
  });
  return { clock, client, attachment, attached, fatal };
}

test('7.9: a refusal of the first ATTACH is final; that of a later one is a failure', () => {
  const first = attaching(() => respond.page(302));
  first.attachment.attach();
  first.clock.run(1000);
  assert.equal(first.fatal.length, 1);
  const later = attaching(() => respond.page(302));
  later.attachment.info = {};
  later.attachment.attach();
  later.clock.run(10_000);
  assert.deepEqual(later.fatal, []);
  assert.ok(later.client.posts.length > 8);
});

test('6.3: several relays that answer in turn are an error; one that restarts, or a rare change, is none', () => {
  const attachAgain = (epochs, pause) => {
    let count = 0;
    const world = attaching(({ attach }) => {
      const epoch = Buffer.alloc(8, epochs(count));
      count += 1;
      return { after: 20, status: 200, body: encodeAttached({ ...ATTACHED, epoch, generation: attach.generation }) };
    });
    for (let i = 0; i < 20 && !world.fatal.length; i += 1) {
      world.attachment.attach();
      world.clock.run(world.clock.now() + pause);
    }
    return world.fatal;
  };
  assert.match(attachAgain((count) => count % 2, 1000)[0], /several relays/);
  assert.deepEqual(attachAgain((count) => count, 1000), []);
  assert.deepEqual(attachAgain((count) => count % 2, 30_000), []);
});

const response = (status, headers = {}, body = Buffer.from('x')) => ({ status, headers, body });
const NOW = Date.parse('Fri, 27 Nov 2026 10:00:00 GMT');
const wait = (status, headers) => interpret(null, response(status, headers), NOW).retryAfter;

test('7.9: Retry-After is a number of seconds or a date, which is compared with the Date of the response', () => {
  assert.equal(wait(429, { 'retry-after': '7' }), 7000);
  assert.equal(wait(429, { 'retry-after': 'Fri, 27 Nov 2026 10:00:09 GMT' }), 9000);
  const date = 'Fri, 27 Nov 2026 12:00:00 GMT'; // the clock of the other machine is two hours ahead
  assert.equal(wait(429, { 'retry-after': 'Fri, 27 Nov 2026 12:00:05 GMT', date }), 5000);
  assert.equal(wait(503, { 'retry-after': 'Fri, 27 Nov 2026 09:00:00 GMT' }), 0);
  assert.equal(wait(429, { 'retry-after': 'soon' }), 1000);
});

test('7.9: the pause is at most 30 s, and at most 2 s for an intermediary whose status is not 429', () => {
  assert.equal(wait(429, { 'retry-after': '3600' }), 30_000);
  assert.equal(wait(503, { 'retry-after': '3600' }), 2000);
  const { status, body } = respond.status(5, 503, { retryAfter: 500_000 });
  assert.equal(interpret(null, response(status, {}, body), NOW).retryAfter, 30_000);
  const busy = respond.status(5, 429);
  assert.equal(interpret(null, response(429, {}, busy.body), NOW).retryAfter, 1000);
});

test('7.9: a response with a content coding is no answer; its status still decides', () => {
  const { body } = respond.answer({ exchange: { lane: 0, number: 1 } });
  assert.equal(interpret(null, response(200, {}, body)).kind, RESULT.ANSWER);
  assert.equal(interpret(null, response(200, { 'content-encoding': 'gzip' }, body)).kind, RESULT.FAILURE);
  assert.equal(interpret(null, response(407, { 'content-encoding': 'gzip' })).kind, RESULT.FINAL);
});

test('7.9: an envelope that is not whole is judged by the HTTP status', () => {
  const { body } = respond.answer({ exchange: { lane: 0, number: 1 } });
  assert.equal(interpret(null, response(413, {}, body.subarray(0, 20))).kind, RESULT.TOO_LARGE);
  assert.equal(interpret(null, response(200, {}, body.subarray(0, 20))).kind, RESULT.FAILURE);
});

test('7.10: an unknown code of a STATUS counts by its HTTP status, and a refusal is then final', () => {
  const kind = (status) => interpret(null, response(status, {}, respond.status(99, status).body)).kind;
  assert.equal(kind(403), RESULT.FINAL);
  assert.equal(kind(302), RESULT.FINAL);
  assert.equal(kind(500), RESULT.FAILURE);
});
