import assert from 'node:assert/strict';
import { test } from 'node:test';
import { transfer } from './simulation.mjs';

const SEEDS = Number(process.env.SEEDS ?? 100);
const QUIET = { givenUp: 0, lost: 0, twice: 0, damaged: 0, jitter: 5 };
const LOSSY = { givenUp: 0.05, lost: 0.05, twice: 0.05, damaged: 0.02, jitter: 60 };
const AWFUL = { givenUp: 0.2, lost: 0.2, twice: 0.2, damaged: 0.05, jitter: 300 };

function check(name, options, seeds) {
  test(name, () => {
    for (let seed = 1; seed <= seeds; seed += 1) {
      const result = transfer(seed, options);
      const where = `seed ${seed}`;
      assert.equal(result.opened.error, null, where);
      assert.equal(result.accepted?.error, null, where);
      assert.ok(result.over, `${where}: not over at ${result.at} ms`);
      assert.ok(result.data[0].equals(result.received[0]), `${where}: bytes to the acceptor`);
      assert.ok(result.data[1].equals(result.received[1]), `${where}: bytes to the initiator`);
      for (const log of result.logs)
        assert.ok(log.includes('ended') && !log.includes('lost') && !log.includes('reset'), `${where}: ${log}`);
    }
  });
}

check('all bytes arrive over a quiet network', { faults: QUIET }, SEEDS);
check('all bytes arrive despite loss, repetition, damage and reordering', { faults: LOSSY }, SEEDS);
check('all bytes arrive over a network where a fifth is lost', { faults: AWFUL, size: 20_000 }, SEEDS);
check('all bytes arrive although the relay restarts twice', { faults: LOSSY, restarts: 2 }, SEEDS);
