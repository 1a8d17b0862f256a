// `connect`: standard input -> connection -> standard output.

import { TARGET } from '../wire/payloads.mjs';
import { Runtime } from '../runtime.mjs';
import { Splice } from './splice.mjs';

const REACH = 30_000; // how long the relay may take to answer the first time
const INPUT_AFTER_CLOSE = 200; // how long to look for input that can no longer be sent
const LINGER = 3000; // how long the process waits for the last SHUTDOWN

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

/** Let the last packets leave: until every connection is forgotten, or for a short while. */
export async function linger(runtime) {
  const end = performance.now() + LINGER;
  while (
    performance.now() < end &&
    (runtime.endpoint.connections.size || runtime.endpoint.outbox.length || runtime.carrier.busy)
  )
    await pause(20);
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

export async function connect({ relay, token, proxy, carrier, target }) {
  const runtime = new Runtime({ relay, token, proxy, carrier });
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
    await linger(runtime);
    if (error) {
      error.next ??= nextStep(error, target.text);
      throw error;
    }
  } finally {
    runtime.close();
  }
}
