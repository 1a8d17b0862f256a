// The tables. Rows keep their elements while they are shown, so that focus and selection stay. Names come from users:
// they are only ever set as text.

import { counted, size } from '/live/lines.js';

export function age(seconds) {
  if (seconds < 60) return `${seconds} s`;
  const two = (value) => String(value).padStart(2, '0');
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${two(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${two(Math.floor((seconds % 3600) / 60))} min`;
  return `${Math.floor(seconds / 86400)} d ${two(Math.floor((seconds % 86400) / 3600))} h`;
}

export const acceptor = (row) =>
  row.acceptor_attachment ? `${row.acceptor_endpoint || row.acceptor_attachment} of ${row.acceptor_user}` : '–';
export const opener = (row) => (row.owner ? `a stranger, to ${row.owner}` : row.endpoint || row.attachment);
const of = (value, most) => `${value} of ${most}`;
const isOwn = (user) => user.startsWith('relay:'); // the relay's parts, which cannot be ended
const rateOf = (row) => `${size(row.rate[0] + row.rate[1])}/s`;

// head, what the cell shows, the order that the relay knows, and whether it is a number
export const TABLES = {
  connections: {
    name: 'Connections',
    key: (row) => row.id,
    columns: [
      ['Connection', (row) => row.id, '', false],
      ['User', (row) => row.user, 'user', false],
      ['From', opener, '', false],
      ['Target', (row) => row.target, 'target', false],
      ['State', (row) => row.state, 'state', false],
      ['By', acceptor, '', false],
      ['Age', (row) => age(row.age_s), 'age', true],
      ['Up', (row) => size(row.bytes_up), 'up', true],
      ['Down', (row) => size(row.bytes_down), 'down', true],
      ['Rate', rateOf, 'rate', true],
      ['Waiting', (row) => size(row.waiting_up + row.waiting_down), 'waiting', true],
    ],
  },
  attachments: {
    name: 'Exits and endpoints',
    key: (row) => row.id,
    columns: [
      ['Attachment', (row) => row.id, '', false],
      ['User', (row) => row.user, 'user', false],
      ['Name', (row) => row.name || '–', 'name', false],
      ['Role', (row) => row.role, '', false],
      ['Source', (row) => row.source || '–', '', false],
      ['Carrier', (row) => (row.links > 1 ? `${row.links} links` : row.carrier), '', false],
      ['Age', (row) => age(row.age_s), 'age', true],
      ['Silent', (row) => age(row.silent_s), 'silent', true],
      ['Connections', (row) => String(row.connections), 'connections', true],
      ['Waiting', (row) => of(size(row.waiting_bytes), size(row.waiting_bytes_max)), 'waiting', true],
    ],
    end: (row) => isOwn(row.user) ? null : {
      path: `/attachments?id=${encodeURIComponent(row.id)}`,
      what: `attachment ${row.id}`,
      text: `The endpoint ${row.name || row.id} of ${row.user} and its ${counted(row.connections, 'connection')} end at once. It may `
        + 'attach again.',
    },
  },
  services: {
    name: 'Services',
    key: (row) => `${row.attachment} ${row.name}`,
    columns: [
      ['Service', (row) => row.name, 'name', false],
      ['User', (row) => row.user, 'user', false],
      ['Endpoint', (row) => row.endpoint || row.attachment, '', false],
      ['Unanswered', (row) => of(row.pending, row.backlog), 'pending', true],
      ['Public at', (row) => row.public || '–', '', false],
    ],
  },
  users: {
    name: 'Users',
    key: (row) => row.user,
    columns: [
      ['User', (row) => row.user, 'user', false],
      ['Endpoints', (row) => of(row.attachments, row.attachments_max), 'attachments', true],
      ['Connections', (row) => of(row.connections, row.connections_max), 'connections', true],
      ['Memory', (row) => of(size(row.held_bytes), size(row.held_bytes_max)), 'held', true],
      ['Received', (row) => size(row.traffic.bytes_received), 'bytes', true],
      ['Sent', (row) => size(row.traffic.bytes_sent), '', true],
    ],
    end: (row) => isOwn(row.user) ? null : {
      path: `/users?name=${encodeURIComponent(row.user)}`,
      what: `everything of ${row.user}`,
      text: `All attachments of ${row.user} (${row.attachments}) and their connections end at once. The user's endpoints may `
        + 'attach again, until the user’s tokens are revoked.',
    },
  },
  denials: {
    name: 'Refusals',
    key: (row) => `${row.user} ${row.what}`,
    columns: [
      ['User', (row) => row.user, 'user', false],
      ['Wanted', (row) => row.what, 'what', false],
      ['Times', (row) => String(row.count), 'count', true],
      ['Ago', (row) => age(row.age_s), '', true],
      ['Why, and what would allow it', (row) => row.text, '', false],
    ],
  },
};

// In a refusal, the line of the configuration that would allow it stands at the end.
const LINE = 'would allow it: ';

function setText(cell, text) {
  if (cell.textContent === text) return;
  const at = text.indexOf(LINE);
  if (at < 0) {
    cell.textContent = text;
    return;
  }
  const code = document.createElement('code');
  code.textContent = text.slice(at + LINE.length);
  cell.replaceChildren(text.slice(0, at + LINE.length), code);
}

export class TableView {
  constructor(heads, rows, onSort, onOpen, onEnd) {
    this.heads = heads;
    this.rows = rows;
    this.onSort = onSort;
    this.onOpen = onOpen;
    this.onEnd = onEnd;
    this.shown = new Map();
  }

  choose(name) {
    this.name = name;
    this.table = TABLES[name];
    this.shown.clear();
    this.rows.replaceChildren();
    const cells = this.table.columns.map(([head, , sort, isNumber]) => {
      const cell = document.createElement('th');
      cell.scope = 'col';
      if (isNumber) cell.className = 'number';
      if (sort) {
        const button = document.createElement('button');
        button.type = 'button';
        button.textContent = head;
        button.addEventListener('click', () => this.onSort(sort));
        cell.dataset.sort = sort;
        cell.append(button);
      } else {
        cell.textContent = head;
      }
      return cell;
    });
    if (this.table.end) {
      const cell = document.createElement('th');
      cell.scope = 'col';
      cell.textContent = 'End';
      cells.push(cell);
    }
    this.heads.replaceChildren(...cells);
  }

  mark(sort, isReversed) {
    for (const cell of this.heads.children) {
      cell.removeAttribute('aria-sort');
      if (cell.dataset.sort !== sort || !sort) continue;
      const isFalling = cell.className === 'number' ? !isReversed : isReversed;
      cell.setAttribute('aria-sort', isFalling ? 'descending' : 'ascending');
    }
  }

  show(rows) {
    const held = document.activeElement;
    const kept = new Map();
    rows.forEach((row, place) => {
      const key = this.table.key(row);
      const found = this.shown.get(key) ?? this.make();
      kept.set(key, found);
      this.fill(found, row);
      if (this.rows.children[place] !== found.element) {
        this.rows.insertBefore(found.element, this.rows.children[place] ?? null);
      }
    });
    for (const [key, found] of this.shown) if (!kept.has(key)) found.element.remove();
    this.shown = kept;
    if (held && held !== document.activeElement && held.isConnected) held.focus({ preventScroll: true });
  }

  make() {
    const element = document.createElement('tr');
    const found = { element, cells: [], row: null, opens: null, ends: null };
    this.table.columns.forEach(([head, , , isNumber], place) => {
      const cell = document.createElement('td');
      cell.dataset.head = head;
      if (isNumber) cell.className = 'number';
      if (this.name === 'denials' && head.startsWith('Why')) cell.className = 'wide';
      element.append(cell);
      if (place === 0 && this.name === 'connections') {
        found.opens = document.createElement('button');
        found.opens.type = 'button';
        found.opens.addEventListener('click', () => this.onOpen(found.row));
        cell.append(found.opens);
        found.cells.push(found.opens);
      } else {
        found.cells.push(cell);
      }
    });
    if (this.table.end) {
      const cell = document.createElement('td');
      cell.dataset.head = 'End';
      found.ends = document.createElement('button');
      found.ends.type = 'button';
      found.ends.className = 'danger';
      found.ends.textContent = 'End…';
      found.ends.addEventListener('click', () => this.onEnd(this.table.end(found.row)));
      cell.append(found.ends);
      element.append(cell);
    }
    return found;
  }

  fill(found, row) {
    found.row = row;
    this.table.columns.forEach(([, text], place) => setText(found.cells[place], text(row)));
    if (found.opens) found.opens.setAttribute('aria-label', `Connection ${row.id} of ${row.user} to ${row.target}`);
    if (found.ends) {
      const what = this.table.end(row);
      found.ends.hidden = what === null;
      if (what) found.ends.setAttribute('aria-label', `End ${what.what}`);
    }
  }
}
