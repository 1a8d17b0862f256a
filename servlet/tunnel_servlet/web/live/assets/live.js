// The page: reads the relay's events with the admin secret, shows them, and ends what the operator chooses.

import { Lines, counted, size } from '/live/lines.js';
import { TABLES, TableView, acceptor, age, opener } from '/live/tables.js';

const ROWS = 50;
const HEADER = 'Tunnel-Admin';
const KEPT = 'tunnel-admin';
const RETRY_MS = 2000;
const SILENT_MS = 15000;
const TYPING_MS = 250;
const at = (id) => document.getElementById(id);

let secret = sessionStorage.getItem(KEPT) ?? document.documentElement.dataset.secret ?? '';
let stream = null;
let isPaused = false;
let typing = 0;
let lastRow = null;
const wanted = { table: 'connections', find: '', user: '', sort: '', reverse: false, offset: 0, detail: '' };
const lines = new Lines(at('lines'));
const view = new TableView(at('heads'), at('rows'), sortBy, openDetail, confirmEnd);

function say(text) {
  at('said').textContent = text;
}

function setState(text, isBad) {
  if (at('state').textContent !== text) at('state').textContent = text;
  at('state').classList.toggle('bad', isBad);
}

// --- the stream of events

function query() {
  const found = new URLSearchParams({ table: wanted.table, limit: ROWS, offset: wanted.offset });
  for (const name of ['find', 'user', 'sort', 'detail']) if (wanted[name]) found.set(name, wanted[name]);
  if (wanted.reverse) found.set('reverse', '1');
  return found;
}

function restart() {
  stream?.abort();
  if (isPaused || !secret) return;
  stream = new AbortController();
  follow(stream);
}

async function follow(mine) {
  while (!mine.signal.aborted) {
    const why = await read(mine);
    if (mine.signal.aborted) return;
    if (why === 'secret') return;
    setState(why || 'No relay answers; trying again', true);
    await new Promise((done) => setTimeout(done, RETRY_MS));
  }
}

async function read(mine) {
  const silence = new AbortController();
  let timer = setTimeout(() => silence.abort(), SILENT_MS);
  try {
    const answer = await fetch(`/events?${query()}`, {
      headers: { [HEADER]: secret },
      signal: AbortSignal.any([mine.signal, silence.signal]),
    });
    if (answer.status === 403) {
      ask((await answer.text()).trim());
      return 'secret';
    }
    if (!answer.ok) return (await answer.text()).trim();
    begin();
    let rest = '';
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return '';
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENT_MS);
      const events = (rest + value).split('\n\n');
      rest = events.pop();
      for (const event of events) if (!mine.signal.aborted) show(JSON.parse(event.slice('data: '.length)));
    }
  } catch {
    return '';
  } finally {
    clearTimeout(timer);
  }
}

function show(event) {
  const { summary, table, rates, detail } = event;
  setState(summary.draining ? 'Draining' : summary.ready ? 'Live' : 'Not ready', !summary.ready);
  at('summary').textContent =
    `${counted(summary.open, 'open connection')}, ${summary.opening} opening · ${counted(summary.users, 'user')} · `
    + `${counted(summary.attachments, 'endpoint')}, with ${counted(summary.exits, 'exit')} · `
    + `${counted(summary.services, 'service')} · `
    + `${size(summary.held_bytes)} of ${size(summary.held_bytes_max)} held · up for ${age(summary.uptime_s)}`;
  lines.add(event.points);
  if (wanted.table === 'connections') table.rows.forEach((row, place) => { row.rate = rates[place]; });
  view.show(table.rows);
  showCount(table);
  if (wanted.detail) showDetail(detail);
}

function showCount(table) {
  const { offset } = wanted;
  const last = offset + table.rows.length;
  const all = table.matched === table.total ? '' : `, of ${table.total.toLocaleString('en')} in all`;
  at('count').textContent = table.rows.length
    ? `${(offset + 1).toLocaleString('en')} to ${last.toLocaleString('en')} of ${table.matched.toLocaleString('en')}${all}`
    : '';
  at('none').hidden = table.rows.length > 0;
  at('none').textContent = table.total ? 'None of them matches.' : 'There are none.';
  at('back').disabled = offset === 0;
  at('next').disabled = last >= table.matched;
  if (!table.rows.length && offset && table.matched) turn(-offset);
}

// --- the table

function chooseTable(name) {
  Object.assign(wanted, { table: name, sort: '', reverse: false, offset: 0 });
  view.choose(name);
  for (const tab of at('tabs').children) {
    const isChosen = tab.dataset.table === name;
    tab.setAttribute('aria-selected', String(isChosen));
    tab.tabIndex = isChosen ? 0 : -1;
  }
  at('panel').setAttribute('aria-labelledby', `tab-${name}`);
  at('caption').textContent = TABLES[name].name;
  restart();
}

function sortBy(key) {
  // The first press sorts, the second the other way round, the third not at all.
  if (wanted.sort !== key) Object.assign(wanted, { sort: key, reverse: false });
  else if (!wanted.reverse) wanted.reverse = true;
  else Object.assign(wanted, { sort: '', reverse: false });
  wanted.offset = 0;
  view.mark(wanted.sort, wanted.reverse);
  restart();
}

function turn(rows) {
  wanted.offset = Math.max(0, wanted.offset + rows);
  restart();
}

function typed() {
  clearTimeout(typing);
  typing = setTimeout(() => {
    Object.assign(wanted, { find: at('find').value.trim(), user: at('user').value.trim(), offset: 0 });
    restart();
  }, TYPING_MS);
}

function makeTabs() {
  const tabs = Object.entries(TABLES).map(([name, table]) => {
    const tab = document.createElement('button');
    tab.type = 'button';
    tab.id = `tab-${name}`;
    tab.dataset.table = name;
    tab.textContent = table.name;
    tab.setAttribute('role', 'tab');
    tab.setAttribute('aria-controls', 'panel');
    tab.addEventListener('click', () => chooseTable(name));
    return tab;
  });
  at('tabs').replaceChildren(...tabs);
  at('tabs').addEventListener('keydown', (press) => {
    const here = tabs.indexOf(document.activeElement);
    const there = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: tabs.length - 1 }[press.key];
    if (there === undefined || here < 0) return;
    press.preventDefault();
    const tab = tabs[(there + tabs.length) % tabs.length];
    tab.focus();
    chooseTable(tab.dataset.table);
  });
}

// --- one connection

function openDetail(row) {
  wanted.detail = row.id;
  lastRow = row;
  at('detail-title').textContent = `Connection ${row.id}`;
  at('facts').replaceChildren();
  at('detail-gone').hidden = true;
  at('detail-end').disabled = false;
  at('detail').showModal();
  at('detail-close').focus();
  restart();
}

const endpointText = (one) => `${one.name || one.id} of ${one.user}, ${one.role} by ${one.carrier}${one.source ? ` from ${one.source}` : ''}, attached for `
  + `${age(one.age_s)}, last heard ${age(one.silent_s)} ago, ${counted(one.connections, 'connection')}`;

function showDetail(detail) {
  at('detail-gone').hidden = detail !== null;
  at('detail-end').disabled = detail === null;
  if (detail === null) return;
  const { row, rate, opener: from, acceptor: by } = detail;
  lastRow = row;
  const facts = [
    ['User', row.user],
    ['Target', row.target],
    ['State', row.state],
    ['Age', age(row.age_s)],
    ['Opened by', row.owner ? opener(row) : endpointText(from)],
    ['Accepted by', by ? endpointText(by) : acceptor(row)],
    ['Up', `${size(row.bytes_up)}, ${size(rate[0])}/s, ${size(row.waiting_up)} waiting`],
    ['Down', `${size(row.bytes_down)}, ${size(rate[1])}/s, ${size(row.waiting_down)} waiting`],
  ];
  const list = at('facts');
  facts.forEach(([name, text], place) => {
    if (!list.children[2 * place]) {
      const term = document.createElement('dt');
      term.textContent = name;
      list.append(term, document.createElement('dd'));
    }
    const cell = list.children[2 * place + 1];
    if (cell.textContent !== text) cell.textContent = text;
  });
}

// --- ends

let ending = null;

function confirmEnd(what) {
  ending = what;
  at('confirm-title').textContent = `End ${what.what}?`;
  at('confirm-text').textContent = what.text;
  at('confirm').showModal();
  at('confirm-no').focus();
}

async function end() {
  const what = ending;
  at('confirm').close();
  try {
    const answer = await fetch(what.path, { method: 'DELETE', headers: { [HEADER]: secret } });
    if (!answer.ok) {
      say((await answer.text()).trim());
      return;
    }
    const { connections, attachments } = await answer.json();
    say(`Ended ${what.what}: ${counted(connections, 'connection')}, ${counted(attachments, 'attachment')}`);
  } catch {
    say(`No relay answers: it is not known whether ${what.what} was ended`);
  }
  restart();
}

// --- the secret

function ask(why) {
  stream?.abort();
  secret = '';
  sessionStorage.removeItem(KEPT);
  for (const dialog of document.querySelectorAll('dialog[open]')) dialog.close();
  at('view').hidden = at('pause').hidden = at('forget').hidden = true;
  at('login').hidden = false;
  at('why').textContent = why;
  at('summary').textContent = '';
  setState('', false);
  at('rows').replaceChildren();
  view.shown.clear();
  at('secret').value = '';
  at('secret').focus();
}

function begin() {
  sessionStorage.setItem(KEPT, secret);
  at('secret').value = '';
  at('why').textContent = '';
  at('login').hidden = true;
  at('view').hidden = at('pause').hidden = at('forget').hidden = false;
}

at('login').addEventListener('submit', (event) => {
  event.preventDefault();
  const given = at('secret').value.trim();
  // Only such letters can be in a secret; others cannot be in a header.
  if (!/^[\x21-\x7e]+$/.test(given)) {
    at('why').textContent = 'That is not an admin secret.';
    return;
  }
  secret = given;
  restart();
});
at('forget').addEventListener('click', () => ask(''));
at('pause').addEventListener('click', () => {
  isPaused = !isPaused;
  at('pause').setAttribute('aria-pressed', String(isPaused));
  stream?.abort();
  if (isPaused) setState('Paused', false);
  else restart();
});
at('find').addEventListener('input', typed);
at('user').addEventListener('input', typed);
at('back').addEventListener('click', () => turn(-ROWS));
at('next').addEventListener('click', () => turn(ROWS));
at('detail-close').addEventListener('click', () => at('detail').close());
at('detail').addEventListener('close', () => {
  if (!wanted.detail) return;
  wanted.detail = '';
  restart();
});
at('detail-end').addEventListener('click', () => confirmEnd({
  path: `/connections?id=${encodeURIComponent(lastRow.id)}`,
  what: `connection ${lastRow.id}`,
  text: `The connection of ${lastRow.user} to ${lastRow.target} ends at once: both ends get a reset.`,
}));
at('confirm-no').addEventListener('click', () => at('confirm').close());
at('confirm-yes').addEventListener('click', end);
// A page that nobody sees costs the relay nothing.
document.addEventListener('visibilitychange', () => {
  if (document.hidden) stream?.abort();
  else restart();
});

makeTabs();
chooseTable('connections');
if (!secret) at('secret').focus();
