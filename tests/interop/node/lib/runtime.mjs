// Joins the clock, the endpoint, its attachment (section 6) and the carriers (8.0). Everything with I/O starts here.
import { Endpoint } from './endpoint.mjs';
import { HttpClient, RepeatedRequest } from './exchange.mjs';
import { Link } from './link.mjs';
import { Poll } from './poll.mjs';
import { KIND, encodeBody } from './wire.mjs';
const LARGEST_BODY = 4 * 1024 * 1024;
const [FIRST_REST, GOOD_USE] = [100, 60_000]; // between tries of a link (8.6)
const LONGEST_REST = { auto: 600_000, link: 5000 };

export class Runtime {
  /** carrier: "poll", "link" (and nothing else), or "auto": a link where one works, and exchanges everywhere else. */
  constructor({ relay, token, carrier, pullInterval }) {
    this.client = new HttpClient(relay, token);
    this.endpoint = new Endpoint({ pullInterval });
    Object.assign(this, { carrier, pullInterval, generation: 0, info: null, link: null, rest: FIRST_REST });
    this.trouble = (why) => (this.lastTrouble = why);
    this.poll = new Poll(this);
    this.ready = new Promise((resolve) => (this.resolveReady = resolve));
    this.failed = new Promise((_, reject) => (this.rejectFailed = reject)); // when no repeat can help
    this.failed.catch(() => {});
  }
  /** Attach, or attach again. After STATUS(stale) the generation more than doubles (7.10). */
  attach(stale = false) {
    this.generation = stale ? this.generation * 2 + 1 + Math.floor(Math.random() * 16) : this.generation + 1;
    const { client, generation, pullInterval, endpoint } = this;
    const fields = { secret: endpoint.secret, generation, pullInterval, largestBody: LARGEST_BODY, low: 1, high: 1 };
    this.attaching = new RepeatedRequest({
      client, body: encodeBody(KIND.ATTACH, fields), maxOpen: 8, attached: this.info !== null, trouble: this.trouble,
      isAnswer: ({ of, value }) => of === KIND.ATTACHED && value.generation === generation,
      done: ({ kind, value, why }) => {
        if (kind === 'stale') this.attach(true);
        else if (kind === 'unknown') this.retry = setTimeout(() => this.attach(), 1000); // 7.9
        else if (kind === 'answer') this.whenAttached(value);
        else this.fatal(why);
      },
    });
  }
  whenAttached(info) {
    const fresh = (info.flags & 1) === 1 || (this.info !== null && !this.info.epoch.equals(info.epoch)); // 6.3
    Object.assign(this, { info, attached: true });
    this.endpoint.attached(info, fresh, performance.now());
    if (this.carrier !== 'link') this.poll.start(info);
    if (this.carrier !== 'poll') this.openLink();
    this.resolveReady();
    this.wake();
  }
  reattach(stale) {
    if (!this.attached || this.closed) return;
    this.attached = false;
    this.endpoint.attachmentLost(performance.now());
    this.stopCarriers();
    this.attach(stale);
  }
  /** End everything, because no repeat can help: for example, the token is wrong. */
  fatal(why) {
    const error = new Error(why);
    this.rejectFailed(error);
    for (const connection of this.endpoint.connections.values()) connection.die(error);
    this.endpoint.sweep(performance.now()); // tells the applications
    this.close();
  }
  openLink() {
    const openedAt = performance.now();
    const link = new Link(this, this.info, {
      opened: () => this.wake(),
      ended: (why, result) => {
        if (this.link !== link) return;
        this.trouble(why);
        this.link = null;
        this.wake();
        const wasGood = performance.now() - openedAt > GOOD_USE;
        this.rest = wasGood ? FIRST_REST : Math.min(LONGEST_REST[this.carrier], this.rest * 2);
        const { kind = 'failure' } = result; // without exchanges beside it, a refusal of the link has consequences
        if (this.carrier === 'link' && (kind === 'unknown' || kind === 'stale')) this.reattach(kind === 'stale');
        else if (this.carrier === 'link' && kind !== 'failure') this.fatal(`no link opens (${why}): use auto`);
        else this.retry = setTimeout(() => this.openLink(), this.rest * (1 - Math.random() / 4) + (result.wait ?? 0));
      },
    });
    this.link = link;
  }
  stopCarriers() {
    clearTimeout(this.retry);
    const { link } = this;
    this.link = null;
    link?.end('the endpoint gives it up');
    this.poll.stop();
  }
  askPullInterval(pullInterval) {
    this.pullInterval = pullInterval; // each later ATTACH asks for it, too (2.7)
    this.endpoint.say(Object.assign(this.endpoint.interval, { values: { options: { pullInterval } } }));
    this.wake();
  }
  /** Whether packets are still on their way to the relay. */
  get busy() { return this.endpoint.outbox.length > 0 || this.poll.busy || this.link?.outstanding.length > 0; }
  /** Something has changed: call tick() once, soon. */
  wake() { if (!this.woken) setImmediate(() => this.tick()); this.woken = true; }
  tick() {
    this.woken = false;
    if (this.closed) return;
    const { endpoint } = this;
    const now = performance.now();
    endpoint.handleTimeout(now);
    for (const connection of endpoint.connections.values()) connection.app?.update();
    if (this.attached) this.link?.pump(now);
    if (this.attached && this.carrier !== 'link') this.poll.pump(now, this.link?.greeted);
    clearTimeout(this.alarm);
    const delay = Math.min(60_000, endpoint.next(now) - performance.now());
    this.alarm = setTimeout(() => this.tick(), Math.max(1, delay));
  }
  close() {
    this.closed = true;
    clearTimeout(this.alarm);
    this.attaching?.stop();
    this.stopCarriers();
    this.client.agent.destroy();
  }
}
