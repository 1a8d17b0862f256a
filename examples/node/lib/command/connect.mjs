// `connect`: standard input -> connection -> standard output.

import { TARGET } from '../wire/payloads.mjs';
import { Runtime } from '../runtime.mjs';
import { switchOnSignal } from './interval.mjs';
import { Splice } from './splice.mjs';

const REACH = 30_000; // how long the relay may take to answer the first time
const INPUT_AFTER_CLOSE = 200; // how long to look for input that can no longer be sent
const FLUSH = 3000; // how long the last packets of connections that have ended may take to leave

const pause = (ms) =>
  new Promise((resolve) => {
    setTimeout(resolve, ms);
  });

/** Attach, or throw an Error that says why not and what to do. */
export async function reachRelay(runtime, relay) {
  const late = new Error(`the relay ${relay} has not answered for ${REACH / 1000} s`);
  let timer;
  const limit = new Promise((_, reject) => {
    timer = setTimeout(() => reject(late), REACH);
  });
  try {
    await Promise.race([runtime.start(), limit]);
  } catch (error) {
    if (error === late) error.message += ` (${runtime.lastTrouble ?? 'no answer at all'})`;
    error.next ??=
      error === late ? 'check --relay and whether the relay runs' : 'check the token and the rules of the relay';
    throw error;
  } finally {
    clearTimeout(timer);
  }
}

/**
 * Wait until every connection is forgotten, because the peer's SHUTDOWN has come or the drain is over (5.7), but at
 * most `longest` ms. Then let the last packets leave.
 */
export async function linger(runtime, longest) {
  const { endpoint, carrier } = runtime;
  const waitUntil = runtime.now + longest;
  while (!runtime.closed && endpoint.connections.size && runtime.now < waitUntil) await pause(20);
  const flushUntil = runtime.now + FLUSH;
  while (!runtime.closed && (endpoint.outbox.length || carrier.busy) && runtime.now < flushUntil) await pause(20);
}

function nextStep(error, target) {
  if (error.reject === 1) return `ask the operator of the relay for a rule that allows ${target}`;
  if (error.reject === 6) return 'check the name, and whether the service runs';
  if (error.reject) return `check that ${target} can be reached from the exit`;
  return 'try again; what was sent may not have arrived';
}

/** After the peer's CLOSE nothing more can be written (5.4). Input that still comes was not sent, which is an error. */
async function moreInput(splice) {
  if (splice.inputEnded) return null;
  const came = new Promise((resolve) => {
    process.stdin.once('data', () => resolve(true));
    process.stdin.once('end', () => resolve(false));
  });
  process.stdin.resume();
  if (!(await Promise.race([came, pause(INPUT_AFTER_CLOSE)]))) return null;
  return new Error('the peer closed the connection before all of standard input was sent');
}

export async function connect({ relay, token, proxy, carrier, target, pullInterval, longestDrain }) {
  const runtime = new Runtime({ relay, token, proxy, carrier, settings: { pullInterval } });
  switchOnSignal(runtime, pullInterval);
  try {
    await reachRelay(runtime, relay);
    const wanted = target.service
      ? { kind: TARGET.SERVICE, host: target.service }
      : { kind: TARGET.TCP, host: target.host, port: target.port };
    const connection = runtime.endpoint.open(wanted, runtime.now);
    let splice;
    let error = await new Promise((done) => {
      splice = new Splice({ runtime, connection, input: process.stdin, output: process.stdout, done });
      runtime.wake();
    });
    error ??= await moreInput(splice);
    await linger(runtime, longestDrain);
    if (error) {
      error.next ??= nextStep(error, target.text);
      throw error;
    }
  } finally {
    runtime.close();
  }
}
