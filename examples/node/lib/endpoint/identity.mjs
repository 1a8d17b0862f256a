// The identity of an endpoint: its secret and attachment id (6.1), and the random numbers that it draws.

import { createHash, randomBytes } from 'node:crypto';

export class Identity {
  constructor(secret = randomBytes(32)) {
    this.secret = secret;
    this.attachmentId = createHash('sha256').update('tunnel attachment 1').update(secret).digest().subarray(0, 16);
  }
}

export const randomU32 = () => randomBytes(4).readUInt32BE(0);
export const randomKey = () => randomBytes(16);
