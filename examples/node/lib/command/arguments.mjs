// The command line: what is meant, or a UsageError that says what is wrong.

import { readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';

export class UsageError extends Error {}

export const USAGE = `usage:
  node main.mjs connect --relay URL [--linger SECONDS] [OPTIONS] TARGET
      TARGET is HOST:PORT or service:NAME; standard input -> connection -> standard output
      --linger SECONDS         wait at most so long for the peer at the end; without it, until the drain is over
  node main.mjs serve --relay URL [--endpoint-name NAME] [--to HOST:PORT] [OPTIONS] NAME
      offers the service NAME: connections are echoed, or joined with HOST:PORT
options of both:
      --token-file FILE        the token; without it, the environment variable TUNNEL_TOKEN
      --carrier auto|poll|link auto, the default, uses a link where one works, and exchanges everywhere else
      --pull-interval SECONDS  ask for what waits in these intervals, in place of held requests; SIGUSR2 switches
      --proxy http://HOST:PORT`;

const OPTIONS = {
  relay: { type: 'string' },
  'token-file': { type: 'string' },
  carrier: { type: 'string', default: 'auto' },
  'pull-interval': { type: 'string', default: '0' },
  linger: { type: 'string' },
  proxy: { type: 'string' },
  'endpoint-name': { type: 'string', default: '' },
  to: { type: 'string' },
};

function hostAndPort(text, what) {
  const match = /^(?:\[([^\]]+)\]|([^:]+)):(\d{1,5})$/.exec(text);
  const port = match && Number(match[3]);
  if (!match || port < 1 || port > 65_535)
    throw new UsageError(`${what} ${text} is not HOST:PORT; write it like 127.0.0.1:8080`);
  return { host: match[1] ?? match[2], port, text };
}

/** Seconds as milliseconds. */
function seconds(text, what) {
  if (!/^\d{1,5}(\.\d{1,3})?$/.test(text))
    throw new UsageError(`${what} ${text} is not a number of seconds; write it like 2.5`);
  return Math.round(Number(text) * 1000);
}

function httpUrl(text, what, schemes) {
  let url;
  try {
    url = new URL(text);
  } catch {
    throw new UsageError(`${what} ${text} is not a URL; write it like http://127.0.0.1:8080`);
  }
  if (!schemes.includes(url.protocol))
    throw new UsageError(`${what} ${text} has the scheme ${url.protocol}; choose one of ${schemes.join(' ')}`);
  return text;
}

// A token crosses a network only in TLS: otherwise everybody on the way could read and use it.
function requirePrivate({ relay, proxy, token }) {
  if (!token || relay.startsWith('https:') || process.env.TUNNEL_INSECURE_HTTP === '1') return;
  const away = [relay, proxy].find((url) => url && !isHere(new URL(url).hostname));
  if (away)
    throw new UsageError(`the token would go unencrypted to ${away}; use https:// or set TUNNEL_INSECURE_HTTP=1`);
}

function isHere(host) {
  return host === '[::1]' || /^127(\.\d+){3}$/.test(host) || /^(.+\.)?localhost\.?$/.test(host);
}

function tokenOf(file) {
  if (!file) return process.env.TUNNEL_TOKEN;
  try {
    return readFileSync(file, 'utf8').trim();
  } catch (error) {
    throw new UsageError(`the token file ${file} cannot be read (${error.code}); give a file that you can read`);
  }
}

export function parse(argv) {
  const [command, ...rest] = argv;
  if (command !== 'connect' && command !== 'serve')
    throw new UsageError(`there is no command ${command ?? '(none)'}; choose connect or serve`);
  let parsed;
  try {
    parsed = parseArgs({ args: rest, options: OPTIONS, allowPositionals: true });
  } catch (error) {
    throw new UsageError(error.message);
  }
  const { values, positionals } = parsed;
  if (!values.relay) throw new UsageError('no relay is named; give --relay URL');
  if (!['auto', 'poll', 'link'].includes(values.carrier))
    throw new UsageError(`there is no carrier ${values.carrier}; choose auto, poll or link`);
  if (positionals.length !== 1)
    throw new UsageError(
      `${command} takes one ${command === 'connect' ? 'TARGET' : 'NAME'}, not ${positionals.length}`,
    );
  const relay = httpUrl(values.relay, '--relay', ['http:', 'https:']);
  if (values.proxy && relay.startsWith('https:'))
    throw new UsageError('--proxy works with http:// relays only; leave it out or use an http:// relay');
  const common = {
    command,
    relay,
    carrier: values.carrier,
    pullInterval: seconds(values['pull-interval'], '--pull-interval'),
    token: tokenOf(values['token-file']),
    proxy: values.proxy && httpUrl(values.proxy, '--proxy', ['http:']),
  };
  requirePrivate(common);
  if (command === 'serve')
    return {
      ...common,
      endpointName: values['endpoint-name'],
      service: positionals[0],
      to: values.to && hostAndPort(values.to, '--to'),
    };
  const [text] = positionals;
  const target = text.startsWith('service:') ? { service: text.slice(8), text } : hostAndPort(text, 'the target');
  if (target.service === '') throw new UsageError('the service has no name; write service:NAME');
  const longestDrain = values.linger === undefined ? Infinity : seconds(values.linger, '--linger');
  return { ...common, target, longestDrain };
}
