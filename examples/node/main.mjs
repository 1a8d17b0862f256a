// A second endpoint of the tunnel protocol, written from docs/PROTOCOL.md alone.

import { USAGE, UsageError, parse } from './lib/command/arguments.mjs';
import { connect } from './lib/command/connect.mjs';
import { serve } from './lib/command/serve.mjs';

const COMMANDS = { connect, serve };

async function main() {
  let options;
  try {
    options = parse(process.argv.slice(2));
  } catch (error) {
    if (!(error instanceof UsageError)) throw error;
    process.stderr.write(`${error.message}\n${USAGE}\n`);
    return 2;
  }
  try {
    await COMMANDS[options.command](options);
    return 0;
  } catch (error) {
    const what = options.target?.text ?? options.service;
    process.stderr.write(`tunnel-node: ${what}: ${error.message}; ${error.next ?? 'try again'}\n`);
    return 1;
  }
}

process.exit(await main());
