// XXH3-128 with seed 0 (2.5). One WebAssembly instance serves all streams: each stream keeps its saved state, because
// an instance can only be made asynchronously and the connections are synchronous.

import { createXXHash128 } from 'hash-wasm';

const shared = await createXXHash128(0, 0);
shared.init();
const EMPTY = shared.save();

export class StreamDigest {
  constructor() {
    this.state = EMPTY;
    this.length = 0;
  }

  update(bytes) {
    shared.load(this.state);
    shared.update(bytes);
    this.state = shared.save();
    this.length += bytes.length;
  }

  /** The 16 bytes of the hash so far, in canonical form. */
  digest() {
    shared.load(this.state);
    return Buffer.from(shared.digest('binary'));
  }
}
