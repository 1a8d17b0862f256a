// Joins a connection with a pair of Node streams, as clause 3.11 says: standard input and output, or a socket.

export class Splice {
  /** {runtime, connection, input, output, done(error or null)}; done is called once. */
  constructor({ runtime, connection, input, output, done }) {
    Object.assign(this, { runtime, connection, input, output, done });
    this.inputEnded = false;
    this.outputEnded = false;
    this.blocked = false; // the output takes no more: bytes stay in the connection, and its window closes
    this.over = false;
    connection.app = (event) => this.handle(event);
    input.on('data', (bytes) => this.read(bytes));
    input.on('end', () => this.ended());
    input.on('error', (error) => this.fail(error));
    output.on('drain', () => {
      this.blocked = false;
      this.drain();
    });
    output.on('error', (error) => this.fail(error));
    this.drain();
  }

  handle(event) {
    if (event === 'readable') this.drain();
    else if (event === 'writable' && this.connection.writable) this.input.resume();
    else if (event === 'reset') this.writeError = this.connection.writeError;
    else if (event === 'lost') this.lost();
    else if (event === 'ended' && this.outputEnded) this.finish(this.writeError ?? null);
  }

  read(bytes) {
    if (this.over || this.inputEnded) return;
    if (!this.connection.write(Buffer.from(bytes))) this.input.pause();
    this.runtime.wake();
  }

  /** After FIN of the input, send FINISH, or CLOSE if the peer's FINISH was carried over before. */
  ended() {
    if (this.inputEnded || this.over) return;
    this.inputEnded = true;
    if (this.outputEnded) this.connection.close(this.runtime.now);
    else this.connection.finish();
    this.runtime.wake();
  }

  /** Carry over the bytes that have come, as long as the output takes them. */
  drain() {
    if (this.outputEnded) return;
    while (!this.blocked) {
      const bytes = this.connection.read(this.runtime.now);
      if (!bytes) break;
      if (!this.output.write(bytes)) this.blocked = true;
    }
    this.runtime.wake(); // reading has opened the window
    if (this.blocked || !this.connection.atEnd) return;
    this.outputEnded = true;
    this.output.end(() => this.carriedOver());
  }

  /** The peer's FINISH or CLOSE is carried over, after every byte before it. */
  carriedOver() {
    const { connection } = this;
    if (connection.receiver.closed || connection.state === 'drain') return this.finish(this.writeError ?? null);
    if (connection.dead) return this.fail(connection.error);
    if (this.inputEnded) {
      connection.close(this.runtime.now);
      this.runtime.wake();
    }
    return undefined;
  }

  lost() {
    // 5.8: the bytes up to the peer's CLOSE are still read
    if (this.connection.receiver.closed) {
      this.drain();
      return;
    }
    this.fail(this.connection.error);
  }

  fail(error) {
    if (this.over) return;
    if (!this.connection.dead) {
      this.connection.abort(this.runtime.now);
      this.runtime.wake();
    }
    this.finish(error ?? new Error('the connection was lost'));
  }

  finish(error) {
    if (this.over) return;
    this.over = true;
    this.input.pause();
    this.done(error);
  }
}
