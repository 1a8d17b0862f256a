// The order in which packets fill a batch: 4.14. A batch is {packets, size, receipted(now), lost(now)}.

const CONTROL_ROOM = 1024; // no control packet is larger
const SMALL = 4096; // connections with less to send go first
const HEADER = 24;
const CONTROL_PACKETS = 16; // no connection has more control packets to send at once

class Batch {
  constructor() {
    this.items = [];
    this.size = 0;
  }

  add(item) {
    this.items.push(item);
    this.size += item.bytes.length;
    item.taken?.();
  }

  get packets() {
    return this.items.map((item) => item.bytes);
  }
  receipted(now) {
    for (const item of this.items) item.receipted?.(now);
  }
  lost(now) {
    for (const item of this.items) item.lost?.(now);
  }
}

/** 4.13: the limit of a DATA payload. */
export function dataLimit(batchLimit, relayLargest) {
  return Math.min(Math.max(1024, Math.min(256 * 1024, Math.floor(batchLimit / 8))), relayLargest - HEADER);
}

export function fillBatch(endpoint, limit, now) {
  const batch = new Batch();
  if (!addControl(endpoint, batch, limit, now)) return batch;
  const most = dataLimit(limit, endpoint.settings.relayLargest);
  const ready = [...endpoint.connections.values()].filter((connection) => connection.hasData());
  const small = ready.filter((connection) => connection.waiting < SMALL);
  const large = ready.filter((connection) => connection.waiting >= SMALL);
  for (const connection of small) while (addPacket(connection, batch, limit, most, now));
  takeTurns(endpoint, large, batch, limit, most, now);
  addProbes(endpoint, batch, limit);
  return batch.items.length ? batch : null;
}

function addControl(endpoint, batch, limit, now) {
  const most = endpoint.settings.batchPackets - CONTROL_PACKETS;
  const room = () => batch.size + CONTROL_ROOM <= limit && batch.items.length <= most;
  while (endpoint.outbox.length && room()) batch.add(endpoint.outbox.shift());
  const sources = [endpoint.services, endpoint.interval, ...endpoint.connections.values()];
  for (const source of sources) {
    if (!room()) return false;
    for (const item of source.control ? source.control(now) : source.packets(now)) batch.add(item);
  }
  return true;
}

/** 4.17: PROBE joins the last packet that an application waits for; if the batch is full, it begins the next one. */
function addProbes(endpoint, batch, limit) {
  for (const { confirming } of endpoint.connections.values()) {
    if (!confirming.due()) continue;
    if (batch.size + HEADER > limit || batch.items.length >= endpoint.settings.batchPackets) return;
    for (const item of confirming.packets()) batch.add(item);
  }
}

/** Deficit round robin over the connections with much to send; the next batch begins with the next connection. */
function takeTurns(endpoint, connections, batch, limit, most, now) {
  const turn = (endpoint.turn ?? 0) % Math.max(1, connections.length);
  const order = [...connections.slice(turn), ...connections.slice(0, turn)];
  endpoint.turn = turn + 1;
  for (let active = order; active.length;) {
    active = active.filter((connection) => {
      connection.deficit = Math.min(connection.deficit + most, 4 * most);
      while (connection.deficit > 0) {
        const before = batch.size;
        if (!addPacket(connection, batch, limit, most, now)) return false;
        connection.deficit -= batch.size - before;
      }
      return batch.size < limit;
    });
  }
}

/** Add one packet of the stream; false when there is none or no room for it. Lost packets go first. */
function addPacket(connection, batch, limit, most, now) {
  if (!connection.hasData() || batch.items.length >= connection.settings.batchPackets) return false;
  const { sender } = connection;
  const again = sender.again();
  if (again) {
    const size = HEADER + again.payload.length;
    if (batch.size && batch.size + size > limit) return false;
    batch.add(connection.dataItem(again, now));
    return batch.size <= limit;
  }
  const room = limit - batch.size - HEADER;
  if (room < Math.min(most, Math.max(32, sender.queued))) return false;
  const item = connection.newData(Math.min(most, room), now);
  if (!item) return false;
  batch.add(item);
  return true;
}
