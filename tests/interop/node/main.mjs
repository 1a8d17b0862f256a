// A second endpoint of the tunnel protocol, written from docs/PROTOCOL.md alone.
import { readFileSync } from 'node:fs';
import { pipeline } from 'node:stream/promises';
import { setTimeout as pause } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { Runtime } from './lib/runtime.mjs';
import { TunnelStream } from './lib/stream.mjs';
import { ABORT, TARGET } from './lib/wire.mjs';
const USAGE = `usage:
  node main.mjs connect --relay URL [OPTIONS] TARGET   TARGET is HOST:PORT or service:NAME; joined with stdin and stdout
  node main.mjs serve --relay URL [OPTIONS] NAME       offers the service NAME, which echoes
options:
  --token-file FILE        the token; without it, the environment variable TUNNEL_TOKEN
  --carrier auto|poll|link auto, the default, uses a link where one works, and exchanges everywhere else
  --pull-interval SECONDS  ask for what waits in these intervals, in place of held requests; SIGUSR2 switches`;
const text = (value) => ({ type: 'string', default: value });
const OPTIONS = { relay: text(''), 'token-file': text(''), carrier: text('auto'), 'pull-interval': text('0') };
const REACH = 30_000; // how long the relay may take to answer the first time
const LINGER = 3000; // how long the last packets may take to leave (5.7 allows an end during the drain)
class UsageError extends Error {}
const must = (good, message) => { if (!good) throw new UsageError(message); };

function parse() {
  const { values, positionals } = parseArgs({ options: OPTIONS, allowPositionals: true });
  const { relay, carrier, 'token-file': file, 'pull-interval': interval } = values;
  const [command, what, ...more] = positionals;
  must(COMMANDS[command] && what && !more.length, 'give one command, and one target or name');
  must(/^https?:/.test(relay) && URL.canParse(relay), `give --relay URL, not ${relay}`);
  must(['auto', 'poll', 'link'].includes(carrier), `there is no carrier ${carrier}; choose auto, poll or link`);
  must(Number(interval) >= 0, '--pull-interval takes a number of seconds, such as 2.5');
  const token = file ? readFileSync(file, 'utf8').trim() : process.env.TUNNEL_TOKEN;
  const isHere = /^(\[::1\]|127(\.\d+){3}|(.+\.)?localhost)$/.test(new URL(relay).hostname);
  const isPrivate = !token || isHere || relay.startsWith('https:') || process.env.TUNNEL_INSECURE_HTTP === '1';
  must(isPrivate, `the token would go unencrypted to ${relay}; use https:// or set TUNNEL_INSECURE_HTTP=1`);
  const [, host, port] = /^\[?(.+?)\]?:(\d{1,5})$/.exec(what) ?? [];
  let target = { kind: TARGET.TCP, host, port: Number(port) };
  if (what.startsWith('service:')) target = { kind: TARGET.SERVICE, host: what.slice(8), port: 0 };
  must(command !== 'connect' || target.host, `the target ${what} is not HOST:PORT; write it like 127.0.0.1:8080`);
  return { command, what, target, relay, token, carrier, pullInterval: Math.round(Number(interval) * 1000) };
}

/** Attach, or throw an Error that says why not. SIGUSR2 switches between the interval and held pulls (2.7). */
async function reach(runtime, { relay, pullInterval }) {
  const switchPulls = () => runtime.askPullInterval(runtime.pullInterval ? 0 : pullInterval);
  if (pullInterval) process.on('SIGUSR2', switchPulls);
  runtime.attach();
  const late = pause(REACH, 'late', { ref: false });
  if ((await Promise.race([runtime.ready, runtime.failed, late])) === 'late')
    throw new Error(`the relay ${relay} has not answered for 30 s (${runtime.lastTrouble ?? 'no answer at all'})`);
}
async function linger(runtime) {
  const until = performance.now() + LINGER;
  while ((runtime.endpoint.connections.size || runtime.busy) && performance.now() < until) await pause(10);
}

async function connect(runtime, given) {
  await reach(runtime, given);
  const stream = new TunnelStream(runtime, runtime.endpoint.open(given.target, performance.now()));
  try {
    await Promise.all([pipeline(process.stdin, stream), pipeline(stream, process.stdout, { end: false })]);
  } finally {
    await linger(runtime);
  }
}

/** Echo until SIGTERM. Then the open connections end with ABORT: a cut must not look like an end of stream. */
async function serve(runtime, given) {
  const { endpoint } = runtime;
  const echo = (stream) => pipeline(stream, stream).catch(() => {});
  endpoint.onConnection = (c) => (c.app = { update: () => c.shown && echo(new TunnelStream(runtime, c)) });
  let said = false; // a restarted relay confirms the service again
  endpoint.announce(given.what, 1, ({ state }) => {
    if (state === 2) runtime.fatal('the relay refuses the service');
    else if (!said) process.stderr.write(`listening ${given.what}\n`);
    said = true;
  });
  const signal = new Promise((resolve) => process.once('SIGTERM', resolve).once('SIGINT', resolve));
  await Promise.race([reach(runtime, given), signal]);
  await Promise.race([signal, runtime.failed]);
  endpoint.announce(given.what, 0);
  for (const connection of endpoint.connections.values())
    if (connection.state !== 'drain') connection.abort(ABORT.SHUTTING_DOWN, 'the service was stopped');
  runtime.wake();
  await linger(runtime);
}

const COMMANDS = { connect, serve };

async function main() {
  let given = {};
  try {
    given = parse();
    await COMMANDS[given.command](new Runtime(given), given);
    return 0;
  } catch (error) {
    const isUsage = error instanceof UsageError || error.code?.startsWith('ERR_PARSE_ARGS');
    process.stderr.write(isUsage ? `${error.message}\n${USAGE}\n` : `tunnel-node: ${given.what}: ${error.message}\n`);
    return isUsage ? 2 : 1;
  }
}
process.exit(await main());
