// `serve`: offers a service; each connection is echoed, or joined with a TCP connection.

import net from 'node:net';
import { DOWN, UP } from '../endpoint/services.mjs';
import { Runtime } from '../runtime.mjs';
import { linger, reachRelay } from './connect.mjs';
import { switchOnSignal } from './interval.mjs';
import { Splice } from './splice.mjs';

const BACKLOG = 64;
const DRAIN = 3000; // how long a service that was stopped waits for the peers of connections that drain
const ENDING = 10_000; // how long the relay gets to confirm the end of the service
const SHUTTING_DOWN = 7; // 2.6
const DIAL = 10_000; // 3.10

/** Sends back what comes, and closes at its end. Reading stops while the peer takes no more. */
function echo(runtime, connection) {
  const step = () => {
    for (;;) {
      if (!connection.writable && !connection.sender.ended) return;
      const bytes = connection.read(runtime.now);
      if (!bytes) break;
      connection.write(bytes);
    }
    if (connection.atEnd) connection.close(runtime.now);
    runtime.wake();
  };
  connection.app = (event) => {
    if (event !== 'lost' && event !== 'forgotten' && !connection.dead) step();
  };
  step();
}

function join(runtime, connection, to) {
  const socket = net.connect({ ...to, allowHalfOpen: true });
  const timer = setTimeout(() => socket.destroy(new Error(`${to.host}:${to.port} does not answer`)), DIAL);
  socket.once('connect', () => {
    clearTimeout(timer);
    new Splice({
      runtime,
      connection,
      input: socket,
      output: socket,
      done: (error) => {
        if (error) socket.resetAndDestroy();
        else socket.destroySoon();
      },
    });
  });
  connection.app = (event) => {
    if (event === 'lost') socket.destroy();
  };
  socket.once('error', () => {
    // 3.11: RST or an error of the socket
    clearTimeout(timer);
    connection.abort(runtime.now, 1, 'the target of the service is not reached');
    runtime.wake();
  });
}

function untilSignal(runtime) {
  return new Promise((resolve, reject) => {
    process.once('SIGTERM', resolve);
    process.once('SIGINT', resolve);
    runtime.failed = reject;
  });
}

/** Accept no new connections, and end the open ones with ABORT: a cut must not look like an end of stream. */
async function stop(runtime, name) {
  const { endpoint } = runtime;
  endpoint.services.announce(name, DOWN, 0);
  for (const connection of endpoint.connections.values())
    if (connection.state !== 'drain') connection.abort(runtime.now, SHUTTING_DOWN, 'the service was stopped');
  runtime.wake();
  const end = runtime.now + ENDING;
  while (runtime.now < end && !endpoint.services.get(name).answered)
    await new Promise((resolve) => {
      setTimeout(resolve, 20);
    });
  await linger(runtime, DRAIN);
}

export async function serve({ relay, token, proxy, carrier, endpointName, service, to, pullInterval }) {
  const runtime = new Runtime({ relay, token, proxy, carrier, name: endpointName, settings: { pullInterval } });
  switchOnSignal(runtime, pullInterval);
  try {
    runtime.endpoint.onConnection = (connection) => {
      // 3.5: the application sees the connection when it is shown, with the event "open"
      connection.app = (event) => {
        if (event !== 'open') return;
        if (to) join(runtime, connection, to);
        else echo(runtime, connection);
      };
    };
    let stopping = false;
    let said = false; // a restarted relay confirms the service again
    runtime.endpoint.services.announce(service, UP, BACKLOG, (state) => {
      if (stopping) return;
      if (state === UP && !said) process.stderr.write(`listening ${service}\n`);
      said = true;
      if (state !== UP) runtime.fatal(`the relay refuses the service ${service}`);
    });
    const signal = untilSignal(runtime);
    await Promise.race([reachRelay(runtime, relay), signal]);
    await signal;
    stopping = true;
    if (runtime.attached) await stop(runtime, service);
  } finally {
    runtime.close();
  }
}
