// How an endpoint answers CONNECT: by its services (3.10) and versions (3.4), and a repeated one as before (3.3).

import { Connection } from '../connection/connection.mjs';
import { TYPE, encodePacket } from '../wire/packet.mjs';
import { REJECT, TARGET, decodeConnect, encodeRejected } from '../wire/payloads.mjs';
import { UP } from './services.mjs';

const MEMORY = 4 * 60_000; // 3.3

export class Accepting {
  constructor(endpoint) {
    this.endpoint = endpoint;
    this.live = new Map(); // user and route key -> connection
    this.ended = new Map(); // user and route key -> {reason, text, until}
  }

  key(connect) {
    return `${connect.routeKey.toString('hex')} ${connect.options.user ?? ''}`;
  }

  handle(packet, now) {
    const connect = decodeConnect(packet.payload);
    const key = this.key(connect);
    const live = this.live.get(key);
    if (live) {
      if (packet.source !== live.peerId || (connect.resume && packet.destination !== live.id))
        return this.reject(packet, connect, REJECT.GONE);
      return live.handle(packet, now);
    }
    const ended = this.ended.get(key);
    if (ended) return this.reject(packet, connect, ended.reason, ended.text);
    if (connect.resume) return this.reject(packet, connect, REJECT.GONE); // 6.6
    const refusal = this.refusal(connect);
    if (refusal) {
      this.ended.set(key, { ...refusal, until: now + MEMORY });
      return this.reject(packet, connect, refusal.reason, refusal.text);
    }
    this.accept(packet, connect, key, now);
  }

  refusal(connect) {
    const [low, high] = connect.options.versions ?? [1, 1];
    if (low > 1 || high < 1) return { reason: REJECT.VERSION };
    if (connect.kind === TARGET.TCP) return { reason: REJECT.DENIED, text: 'this endpoint is not an exit' }; // 3.10
    const service = this.endpoint.services.get(connect.host);
    if (!service || service.state !== UP) return { reason: REJECT.NO_SERVICE };
    return null;
  }

  accept(packet, connect, key, now) {
    const connection = new Connection(
      this.endpoint.settings,
      {
        role: 'acceptor',
        id: this.endpoint.drawId(),
        peerId: packet.source,
        initial: this.endpoint.random(),
        routeKey: connect.routeKey,
        kind: connect.kind,
        host: connect.host,
        port: connect.port,
        peer: { connect, packet },
        endpointId: this.endpoint.identity.attachmentId,
      },
      now,
    );
    connection.tombKey = key;
    this.live.set(key, connection);
    this.endpoint.add(connection);
  }

  /** Forget the connection, and note how 3.3 answers a late CONNECT from now on. */
  forget(connection, now) {
    if (!connection.tombKey) return;
    this.live.delete(connection.tombKey);
    this.ended.set(connection.tombKey, {
      reason: connection.error ? REJECT.GONE : REJECT.FINISHED,
      until: now + MEMORY,
    });
    for (const [key, entry] of this.ended) if (entry.until <= now) this.ended.delete(key);
  }

  reject(packet, connect, reason, text = '') {
    const options = reason === REJECT.VERSION ? { versions: [1, 1] } : {};
    const payload = encodeRejected({ routeKey: connect.routeKey, reason, text, options });
    this.endpoint.post(encodePacket({ type: TYPE.REJECTED, source: packet.source, destination: 0, payload }), true); // 2.3
  }
}
