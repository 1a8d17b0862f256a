// A connection as a stream of Node (3.11). Its end is FINISH; when both directions have ended, CLOSE follows.
import { Duplex } from 'node:stream';
const unread = () => new Error('the peer closed the connection before it had read everything');

export class TunnelStream extends Duplex {
  constructor(runtime, connection) {
    super({ allowHalfOpen: true });
    Object.assign(this, { runtime, connection, blocked: null, wanted: false, ended: false });
    connection.app = this;
    this.on('end', () => this.endIfBoth()).on('finish', () => this.endIfBoth());
    runtime.wake();
  }
  update() {
    const { connection, blocked } = this;
    if (this.wanted) this._read();
    if (connection.error && !connection.receiver.closed) this.destroy(connection.error); // 5.8
    else if (blocked && (connection.writable || connection.sender.ended)) {
      this.blocked = null;
      blocked(connection.sender.ended ? unread() : null);
    }
  }
  _read() {
    this.wanted = true;
    while (this.wanted && !this.ended) {
      const bytes = this.connection.read(performance.now());
      this.ended = !bytes && this.connection.atEnd;
      if (!bytes && !this.ended) return;
      this.wanted = this.push(bytes);
      this.runtime.wake(); // reading has opened the window
    }
  }
  _write(bytes, _, done) {
    if (!this.connection.sender.ended) this.connection.sender.write(Buffer.from(bytes));
    this.blocked = done;
    this.update();
    this.runtime.wake();
  }
  _final(done) {
    this.connection.sender.wantFinish = true;
    done(this.connection.unreadByPeer ? unread() : null); // `finish` follows
  }
  endIfBoth() {
    if (this.readableEnded && this.writableFinished) this.connection.close(performance.now()); // 5: CLOSE ends it
    this.runtime.wake();
  }
  _destroy(error, done) { if (error) this.connection.abort(); this.runtime.wake(); done(error); }
}
