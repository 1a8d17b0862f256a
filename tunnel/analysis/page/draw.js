"use strict";
(() => {
  const streams = JSON.parse(document.getElementById("drawn-streams").textContent);
  const table = document.querySelector("table.streams");
  const rows = [...table.querySelectorAll("tr")].slice(1);
  const form = document.querySelector("form.filters");
  const drawing = document.querySelector("div.drawing");
  const canvas = drawing.querySelector("canvas");
  const pen = canvas.getContext("2d");
  const left = 58, right = 10, gap = 34;
  let chosen = null, view = null, drag = null;

  const values = {
    relay: (stream) => stream.relays, node: (stream) => stream.nodes, user: (stream) => [stream.user],
  };

  for (const select of form.querySelectorAll("select")) {
    const known = new Set(streams.flatMap(values[select.dataset.filter]).filter((value) => value));
    for (const value of [...known].sort()) select.add(new Option(value, value));
    select.parentElement.hidden = known.size < 2;
  }
  form.hidden = false;
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());

  function wish(name) { return form.querySelector(`[data-filter="${name}"]`).value.trim(); }

  function filter() {
    const since = parseFloat(wish("since")), until = parseFloat(wish("until")), id = wish("id").toLowerCase();
    streams.forEach((stream, at) => {
      const fits = Object.keys(values).every((name) => !wish(name) || values[name](stream).includes(wish(name)))
        && (!id || stream.id.includes(id) || stream.other.includes(id))
        && (isNaN(since) || stream.end === null || stream.end >= since)
        && (isNaN(until) || stream.begin === null || stream.begin <= until);
      rows[at].hidden = !fits;
    });
  }

  rows.forEach((row, at) => {
    if (!streams[at].points) return;
    row.tabIndex = 0;
    row.className = "drawable";
    row.addEventListener("click", () => show(at));
    row.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      show(at);
    } });
  });

  function choose(at) {
    rows.forEach((row, other) => row.setAttribute("aria-selected", String(other === at)));
    chosen = streams[at];
    view = null;
    drawing.hidden = false;
    drawing.querySelector("h3").textContent =
      `${chosen.id}, ${chosen.from || "–"} to ${chosen.to || "–"}` + (chosen.why ? `: stalled by ${chosen.why}` : "");
    legend();
    draw();
  }

  function show(at) {
    choose(at);
    drawing.scrollIntoView({ block: "nearest" });
  }

  const marks = [
    ["sent", "--c1"], ["again", "--c2", "sent again"], ["received", "--c3"], ["acked", "--c6", "acknowledged"],
    ["sacked", "--c4", "acknowledged beyond a gap (SACK)"],
  ];
  const lines = [["in flight", "--c1", 1], ["window", "--c5", 2]];

  function legend() {
    const place = drawing.querySelector(".legend");
    place.textContent = "";
    for (const [name, tone, label] of [...marks, ...lines.map(([name, tone]) => [name, tone, `${name} (below)`])]) {
      const entry = document.createElement("span");
      entry.style.setProperty("--tone", `var(${tone})`);
      entry.textContent = label || name;
      place.append(entry);
    }
    if (chosen.moves.length) {
      const entry = document.createElement("span");
      entry.style.setProperty("--tone", "var(--soft)");
      entry.textContent = "moved to another relay (dashed)";
      place.append(entry);
    }
  }

  function extent(list, step, from, to) {
    let low = Infinity, high = -Infinity;
    for (let at = 0; at < list.length; at += step)
      if (list[at] >= from && list[at] <= to)
        for (let more = 1; more < step; more++) {
          low = Math.min(low, list[at + more]);
          high = Math.max(high, list[at + more]);
        }
    return [low, high];
  }

  function span() {
    const all = ["sent", "again", "received", "acked"].map((name) => chosen.points[name]);
    let low = Infinity, high = -Infinity;
    for (const list of all) for (let at = 0; at < list.length; at += 2) {
      low = Math.min(low, list[at]);
      high = Math.max(high, list[at]);
    }
    return high > low ? [low, high] : [low - 500, low + 500];
  }

  function ticks(low, high, wanted) {
    const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((nice) => nice * power).find((nice) => nice >= raw);
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(at);
    return found;
  }

  function words(value) {
    for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (Math.abs(value) >= unit) return `${+(value / unit).toPrecision(4)} ${name}`;
    return `${+value.toPrecision(6)}`;
  }

  function axes(box, low, high, title, tone) {
    pen.strokeStyle = tone("--line");
    pen.fillStyle = tone("--soft");
    pen.lineWidth = 1;
    pen.textAlign = "right";
    for (const tick of ticks(low, high, 4)) {
      const y = box.bottom - (tick - low) / (high - low) * (box.bottom - box.top);
      pen.beginPath();
      pen.moveTo(left, y);
      pen.lineTo(box.right, y);
      pen.stroke();
      pen.fillText(words(tick), left - 5, y + 4);
    }
    pen.textAlign = "left";
    pen.fillText(title, left, box.top - 5);
  }

  function draw() {
    if (!chosen) return;
    const style = getComputedStyle(document.documentElement);
    const tone = (name) => style.getPropertyValue(name).trim();
    const width = Math.max(280, canvas.parentElement.clientWidth), height = width < 500 ? 400 : 480;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.font = "12px system-ui, sans-serif";
    pen.fillStyle = tone("--paper");
    pen.fillRect(0, 0, width, height);
    const points = chosen.points, [from, to] = view || span();
    const upper = { top: 18, bottom: height * 0.66, right: width - right };
    const lower = { top: upper.bottom + gap, bottom: height - 36, right: width - right };
    const x = (t) => left + (t - from) / (to - from) * (upper.right - left);
    let low = Infinity, high = -Infinity;
    for (const name of ["sent", "again", "received", "acked"]) {
      const [least, most] = extent(points[name], 2, from, to);
      low = Math.min(low, least);
      high = Math.max(high, most);
    }
    if (!(high > low)) [low, high] = low === Infinity ? [0, 1] : [low - 1, low + 1];
    axes(upper, low, high, "packet", tone);
    const y = (at) => upper.bottom - (at - low) / (high - low) * (upper.bottom - upper.top);
    const most = Math.max(1, extent(points.bytes, 3, from, to)[1]);
    axes(lower, 0, most, "bytes", tone);
    const z = (size) => lower.bottom - size / most * (lower.bottom - lower.top);
    pen.textAlign = "center";
    pen.fillStyle = tone("--soft");
    for (const tick of ticks(from / 1e6, to / 1e6, width < 500 ? 3 : 7))
      pen.fillText(words(tick), x(tick * 1e6), height - 20);
    pen.fillText("seconds since the first packet", (left + upper.right) / 2, height - 4);
    pen.save();
    pen.beginPath();
    pen.rect(left, 0, upper.right - left, lower.bottom + 1);
    pen.clip();
    steps(points.acked, 2, 1, x, y, tone("--c6"));
    for (const [name, color] of [["sent", "--c1"], ["received", "--c3"], ["again", "--c2"]]) {
      pen.fillStyle = tone(color);
      const list = points[name];
      for (let at = 0; at < list.length; at += 2) pen.fillRect(x(list[at]) - 1.5, y(list[at + 1]) - 1.5, 3, 3);
    }
    pen.fillStyle = tone("--c4");
    for (let at = 0; at < points.sacked.length; at += 3) {
      const top = y(points.sacked[at + 1] + points.sacked[at + 2] - 1), bottom = y(points.sacked[at + 1]);
      pen.fillRect(x(points.sacked[at]) - 1, top - 1.5, 2, bottom - top + 3);
    }
    for (const [, color, place] of lines) steps(points.bytes, 3, place, x, z, tone(color));
    pen.strokeStyle = tone("--soft");
    pen.lineWidth = 1;
    pen.setLineDash([4, 4]);
    for (const t of chosen.moves) {
      pen.beginPath();
      pen.moveTo(x(t), upper.top);
      pen.lineTo(x(t), lower.bottom);
      pen.stroke();
    }
    pen.setLineDash([]);
    pen.restore();
    if (drag) {
      pen.fillStyle = tone("--c1");
      pen.globalAlpha = 0.2;
      pen.fillRect(Math.min(drag[0], drag[1]), upper.top, Math.abs(drag[1] - drag[0]), lower.bottom - upper.top);
      pen.globalAlpha = 1;
    }
    canvas.setAttribute("aria-label", `time and sequence of stream ${chosen.id}`);
    drawing.dataset.from = from;
    drawing.dataset.to = to;
  }

  function steps(list, step, place, x, y, color) {
    pen.strokeStyle = color;
    pen.lineWidth = 1.5;
    pen.beginPath();
    for (let at = 0; at < list.length; at += step) {
      const px = x(list[at]), py = y(list[at + place]);
      if (at) {
        pen.lineTo(px, y(list[at - step + place]));
        pen.lineTo(px, py);
      } else pen.moveTo(px, py);
    }
    pen.stroke();
  }

  const place = (event) => Math.min(Math.max(event.clientX - canvas.getBoundingClientRect().left, left),
    canvas.clientWidth - right);
  canvas.addEventListener("pointerdown", (event) => {
    drag = [place(event), place(event)];
  });
  addEventListener("pointermove", (event) => { if (drag) {
    drag[1] = place(event);
    draw();
  } });
  addEventListener("pointerup", () => {
    if (!drag) return;
    const [a, b] = drag.sort((one, other) => one - other);
    drag = null;
    if (b - a > 4) {
      const [from, to] = view || span(), wide = canvas.clientWidth - right - left;
      view = [from + (a - left) / wide * (to - from), from + (b - left) / wide * (to - from)];
    }
    draw();
  });
  addEventListener("pointercancel", () => { drag = null; draw(); });
  function whole() { view = null; draw(); }
  canvas.addEventListener("dblclick", whole);
  drawing.querySelector("button").addEventListener("click", whole);
  window.addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  for (const event of ["beforeprint", "afterprint"]) addEventListener(event, () => {
    document.documentElement.classList.toggle("printed", event === "beforeprint");
    draw();
  });
  const first = streams.findIndex((stream) => stream.points && stream.packets > 1);
  if (first >= 0) choose(first);
})();
