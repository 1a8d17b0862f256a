// Lines over the last 10 minutes, as plain SVG. Each has a name and a sentence for screen readers.

const SVG = 'http://www.w3.org/2000/svg';
const WIDTH = 300;
const HEIGHT = 60;
const SPAN_S = 600;
const SPAN_MIN_S = 60;
const POINTS_MAX = 300;

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

export function size(count) {
  let unit = 0;
  let value = count;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return unit ? `${value.toPrecision(3)} ${UNITS[unit]}` : `${Math.round(value)} B`;
}

export const counted = (count, noun) => `${count.toLocaleString('en')} ${noun}${count === 1 ? '' : 's'}`;

const rate = (value) => `${size(value)}/s`;
const perSecond = (value) => `${value < 10 ? Math.round(value * 10) / 10 : Math.round(value)}/s`;
const whole = (value) => value.toLocaleString('en');
const milliseconds = (value) => (value === null ? 'none' : `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`);

const LINES = [
  { name: 'Throughput', show: rate, series: [['bytes_in', 'from endpoints'], ['bytes_out', 'to endpoints']] },
  { name: 'Connections', show: whole, series: [['connections', 'at present']] },
  { name: 'Openings', show: perSecond, series: [['opened', 'opened'], ['refused', 'refused']] },
  { name: 'Loss', show: perSecond, series: [['lost', 'packets dropped'], ['taken_back', 'sent again']] },
  { name: 'Round trips', show: milliseconds,
    series: [['round_trip_ms', 'median'], ['slow_round_trip_ms', '95th percentile']] },
];

function path(points, key, most, end, span) {
  const found = [];
  let isDown = false;
  for (const point of points) {
    const value = point[key];
    if (value === null) {
      isDown = false;
      continue;
    }
    const x = WIDTH * (1 - (end - point.at_s) / span);
    const y = HEIGHT * (1 - value / most);
    found.push(`${isDown ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`);
    isDown = true;
  }
  return found.join('');
}

class Line {
  constructor(line) {
    this.line = line;
    this.figure = document.createElement('figure');
    const caption = document.createElement('figcaption');
    this.most = document.createElement('span');
    this.most.className = 'most';
    caption.append(line.name, this.most);
    this.svg = document.createElementNS(SVG, 'svg');
    this.svg.setAttribute('viewBox', `0 0 ${WIDTH} ${HEIGHT}`);
    this.svg.setAttribute('preserveAspectRatio', 'none');
    this.svg.setAttribute('role', 'img');
    const frame = document.createElementNS(SVG, 'path');
    frame.setAttribute('class', 'frame');
    frame.setAttribute('d', `M0 0H${WIDTH}M0 ${HEIGHT}H${WIDTH}`);
    this.svg.append(frame);
    this.values = document.createElement('p');
    this.values.className = 'values';
    this.parts = line.series.map(([key, name], place) => {
      const drawn = document.createElementNS(SVG, 'path');
      drawn.setAttribute('class', place ? 'second' : 'first');
      this.svg.append(drawn);
      const text = document.createElement('span');
      text.className = place ? 'two' : 'one';
      this.values.append(text);
      return { key, name, drawn, text };
    });
    this.figure.append(caption, this.svg, this.values);
  }

  draw(points) {
    const { show, name, series } = this.line;
    const end = points.length ? points[points.length - 1].at_s : 0;
    const seen = points.filter((point) => end - point.at_s <= SPAN_S);
    const span = Math.max(SPAN_MIN_S, seen.length ? end - seen[0].at_s : 0);
    const values = seen.flatMap((point) => series.map(([key]) => point[key])).filter((value) => value !== null);
    const most = Math.max(0, ...values);
    const said = [];
    for (const part of this.parts) {
      const last = seen.length ? seen[seen.length - 1][part.key] : null;
      const value = last === null && show !== milliseconds ? '…' : show(last);
      part.drawn.setAttribute('d', path(seen, part.key, most || 1, end, span));
      part.text.textContent = `${value} ${part.name}`;
      said.push(`${value} ${part.name}`);
    }
    const minutes = Math.round(span / 60);
    this.most.textContent = values.length ? `at most ${show(most)} in ${minutes} min` : '';
    this.svg.setAttribute('aria-label', `${name}: ${[...said, this.most.textContent].filter(Boolean).join(', ')}`);
  }
}

export class Lines {
  constructor(place) {
    this.points = [];
    this.lines = LINES.map((line) => new Line(line));
    place.replaceChildren(...this.lines.map((line) => line.figure));
  }

  add(points) {
    const newest = this.points.length ? this.points[this.points.length - 1].at_s : -1;
    if (points.length && points[0].at_s <= newest) this.points = []; // the relay sends all its points again
    this.points.push(...points);
    this.points = this.points.slice(-POINTS_MAX);
    for (const line of this.lines) line.draw(this.points);
  }
}
