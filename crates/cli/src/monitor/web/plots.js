// Plots over time on canvases. They know nothing of figures: they are given columns of numbers and draw them.

/// Colours of the page, read from its style so that light and dark agree with it.
export function colours() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(`--${name}`).trim();
  const kinds = [0, 1, 2, 3, 4, 5, 6].map((i) => get(`k${i}`));
  return { ink: get("ink"), muted: get("muted"), rule: get("rule"), soft: get("soft"), card: get("card"), bad: get("bad"), link: get("link"), kinds };
}

/// The canvas at the screen's resolution, empty.
function begin(canvas) {
  const scale = window.devicePixelRatio || 1, box = canvas.getBoundingClientRect();
  const width = Math.round(box.width * scale), height = Math.round(box.height * scale);
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  const g = canvas.getContext("2d");
  g.setTransform(scale, 0, 0, scale, 0, 0);
  g.clearRect(0, 0, box.width, box.height);
  g.font = `11px ${getComputedStyle(canvas).fontFamily}`;
  g.lineWidth = 1;
  return { g, width: box.width, height: box.height };
}

/// Marks from zero to a round number that is not below this one, in the unit's prefix.
function marksTo(greatest, unit, scale) {
  const [per, label] = scale(greatest, unit), least = greatest / per / 4;
  const power = 10 ** Math.floor(Math.log10(least > 0 ? least : 1));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((v) => v >= least * 0.999) ?? 1;
  const count = Math.max(1, Math.ceil(greatest / per / step - 1e-9));
  return { top: count * step * per, step: step * per, per, label };
}

/// Where plots begin, by their kind: beside the marks of their axis.
const LEFT = { lines: 54, stack: 40, heat: 34, spark: 0 };

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800];

function clock(seconds, step) {
  const date = new Date(seconds * 1000), two = (n) => String(n).padStart(2, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}${step < 60 ? `:${two(date.getSeconds())}` : ""}`;
}

/// Numbers between two times in columns, put together as their kind says; null where nothing is known.
export function columns(data, name, from, to, count) {
  const column = data.values.get(name), out = new Array(count).fill(null), counts = new Array(count).fill(0);
  const width = (to - from) / count;
  if (!column || !(width > 0)) return out;
  const how = data.together.get(name) ?? "mean";
  for (let i = data.after(from); i < data.length && data.from[i] < to; i++) {
    const value = column[i];
    if (!(value === value)) continue;
    const last = Math.max(0, Math.min(count - 1, Math.ceil((data.to[i] - from) / width - 1e-6) - 1));
    let first = Math.max(0, Math.min(last, Math.floor((data.from[i] - from) / width + 1e-6)));
    if (how === "sum") first = last;
    for (let at = first; at <= last; at++) {
      const old = out[at];
      if (old === null) out[at] = value;
      else if (how === "greatest") out[at] = Math.max(old, value);
      else if (how === "least") out[at] = Math.min(old, value);
      else out[at] = old + value;
      counts[at]++;
    }
  }
  if (how === "mean") for (let at = 0; at < count; at++) if (counts[at] > 1) out[at] /= counts[at];
  return out;
}

/// The frame of a plot: marks of its axes. Returns where the plot itself is.
function axes(canvas, view, greatest, unit, left) {
  const { g, width, height } = begin(canvas), c = view.colours;
  const box = { x: left, y: 20, width: width - left - 4, height: height - 42 };
  const { top, step, per, label } = marksTo(greatest, unit, view.scale);
  const y = (value) => box.y + box.height * (1 - value / top);
  g.fillStyle = c.muted;
  g.strokeStyle = c.rule;
  g.textBaseline = "middle";
  g.textAlign = "right";
  g.fillText(label, box.x - 7, 7);
  const every = box.height / (top / step) < 20 ? 2 : 1;
  for (let i = 0; i * step <= top * 1.001; i++) {
    const at = Math.round(y(i * step)) + 0.5;
    g.globalAlpha = i % every === 0 ? 1 : 0.5;
    g.beginPath();
    g.moveTo(box.x, at);
    g.lineTo(box.x + box.width, at);
    g.stroke();
    if (i % every === 0) g.fillText(String(Number(((i * step) / per).toPrecision(6))), box.x - 7, at);
  }
  g.globalAlpha = 1;
  times(g, box, view, height);
  return { g, box, y, top };
}

function times(g, box, view, height) {
  const span = view.to - view.from, most = Math.max(2, Math.floor(box.width / 92));
  const step = STEPS.find((s) => span / s <= most) ?? 3600;
  g.textBaseline = "alphabetic";
  g.fillStyle = view.colours.muted;
  const zone = new Date(view.to * 1000).getTimezoneOffset() * 60;
  for (let t = Math.ceil((view.from - zone) / step) * step + zone; t <= view.to; t += step) {
    const x = box.x + ((t - view.from) / span) * box.width, half = step < 60 ? 25 : 16;
    g.textAlign = x - half < box.x ? "left" : x + half > box.x + box.width ? "right" : "center";
    g.fillText(clock(t, step), x, height - 6);
    g.fillRect(Math.round(x), box.y + box.height, 1, 4);
  }
}

function cross(g, box, view) {
  if (view.cursor === null || view.cursor < view.from || view.cursor > view.to) return;
  const x = Math.round(box.x + ((view.cursor - view.from) / (view.to - view.from)) * box.width) + 0.5;
  g.save();
  g.strokeStyle = view.colours.ink;
  g.globalAlpha = 0.55;
  g.beginPath();
  g.moveTo(x, box.y);
  g.lineTo(x, box.y + box.height);
  g.stroke();
  g.restore();
}

/// A line through the columns; where nothing is known, and where moments were lost, it is broken.
function stroke(g, box, values, broken, y, fill) {
  const width = box.width / values.length;
  let run = [];
  const end = () => {
    if (run.length === 0) return;
    g.beginPath();
    run.forEach(([px, py], i) => (i === 0 ? g.moveTo(px, py) : g.lineTo(px, py)));
    if (run.length === 1) g.lineTo(run[0][0] + Math.max(width, 1.5), run[0][1]);
    g.stroke();
    if (fill) {
      g.lineTo(run[run.length - 1][0], y(0));
      g.lineTo(run[0][0], y(0));
      g.save();
      g.globalAlpha = 0.12;
      g.fill();
      g.restore();
    }
    run = [];
  };
  values.forEach((value, at) => {
    if (value === null || broken.has(at)) end();
    if (value !== null) run.push([box.x + (at + 0.5) * width, y(value)]);
  });
  end();
}

/// How many columns a plot of this width has: no more than there are moments to fill them.
function resolution(data, view, width) {
  const spacing = data.spacing(view.from, view.to);
  return Math.max(2, Math.min(Math.floor(width), Math.round((view.to - view.from) / Math.max(spacing, 1e-3))));
}

function breaks(data, view, count) {
  const width = (view.to - view.from) / count, out = new Set();
  for (let i = data.after(view.from); i < data.length && data.from[i] < view.to; i++) {
    if (data.gap[i]) out.add(Math.max(0, Math.min(count - 1, Math.floor((data.from[i] - view.from) / width + 1e-6))));
  }
  return out;
}

/// Lines from zero on, with limits, and ticks where something was missed.
export function lines(canvas, data, view, plot) {
  const left = LEFT.lines, room = Math.max(20, canvas.getBoundingClientRect().width - left - 4);
  const count = resolution(data, view, room);
  const all = plot.lines.map((line) => columns(data, line.name, view.from, view.to, count));
  let top = 0;
  for (const values of all) for (const value of values) if (value !== null && value > top) top = value;
  const known = all.some((values) => values.some((v) => v !== null));
  // A limit far above would press the lines flat; the words beside the heading tell it anyway.
  const limit = plot.limit > 0 && plot.limit <= top * 2.5 ? plot.limit : null;
  const { g, box, y } = axes(canvas, view, Math.max(top, limit ?? 0) * 1.02, plot.unit, left);
  const broken = breaks(data, view, count);
  g.lineJoin = "round";
  g.save();
  g.beginPath();
  g.rect(box.x, 0, box.width, box.y + box.height + 1);
  g.clip();
  plot.lines.forEach((line, i) => {
    g.strokeStyle = g.fillStyle = view.colours.kinds[line.kind];
    g.lineWidth = line.thin ? 1 : 1.8;
    stroke(g, box, all[i], broken, y, line.fill);
  });
  if (limit !== null) {
    g.strokeStyle = view.colours.bad;
    g.lineWidth = 1.3;
    g.setLineDash([5, 4]);
    g.beginPath();
    g.moveTo(box.x, y(limit));
    g.lineTo(box.x + box.width, y(limit));
    g.stroke();
    g.setLineDash([]);
  }
  if (plot.ticks) {
    g.fillStyle = view.colours.bad;
    const values = columns(data, plot.ticks, view.from, view.to, count), width = box.width / count;
    values.forEach((value, at) => {
      if (value > 0) g.fillRect(box.x + at * width, box.y + box.height - 5, Math.max(2, width - 1), 5);
    });
  }
  g.restore();
  cross(g, box, view);
  return known;
}

/// Shares on top of each other.
export function stack(canvas, data, view, names) {
  const left = LEFT.stack, room = Math.max(20, canvas.getBoundingClientRect().width - left - 4);
  const count = resolution(data, view, room), { g, box, y } = axes(canvas, view, 100, "%", left);
  const width = box.width / count, base = new Array(count).fill(0);
  let known = false;
  names.forEach((group, kind) => {
    const parts = group.map((name) => columns(data, name, view.from, view.to, count));
    g.fillStyle = view.colours.kinds[Math.min(kind, view.colours.kinds.length - 1)];
    for (let at = 0; at < count; at++) {
      const value = parts.reduce((sum, values) => sum + (values[at] ?? 0), 0);
      if (!(value > 0)) continue;
      known = true;
      const x = Math.floor(box.x + at * width), next = Math.floor(box.x + (at + 1) * width);
      const low = y(Math.min(100, base[at])), high = y(Math.min(100, base[at] + value));
      g.fillRect(x, high, next - x, Math.max(0, low - high));
      base[at] += value;
    }
  });
  cross(g, box, view);
  return known;
}

/// A row for each name, darker where the number is greater; between least and greatest.
export function heat(canvas, data, view, rows, least, greatest) {
  const left = LEFT.heat, { g, width, height } = begin(canvas), c = view.colours;
  const box = { x: left, y: 4, width: width - left - 4, height: height - 26 };
  const count = resolution(data, view, box.width), high = box.height / Math.max(1, rows.length), wide = box.width / count;
  g.fillStyle = c.soft;
  g.fillRect(box.x, box.y, box.width, box.height);
  let known = false;
  rows.forEach((row, i) => {
    const from = Math.round(box.y + i * high), to = Math.round(box.y + (i + 1) * high) - (high > 5 ? 1 : 0);
    g.fillStyle = c.kinds[0];
    columns(data, row.name, view.from, view.to, count).forEach((value, at) => {
      if (value === null) return;
      known = true;
      g.globalAlpha = 0.06 + 0.94 * Math.max(0, Math.min(1, (value - least) / (greatest - least || 1)));
      const x = Math.floor(box.x + at * wide);
      g.fillRect(x, from, Math.floor(box.x + (at + 1) * wide) - x, Math.max(1, to - from));
    });
    g.globalAlpha = 1;
    const every = Math.ceil(12 / high);
    if (i % every === 0) {
      g.fillStyle = c.muted;
      g.textAlign = "right";
      g.textBaseline = "middle";
      g.fillText(row.label, box.x - 7, from + (to - from) / 2);
    }
  });
  times(g, box, view, height);
  cross(g, box, view);
  return known;
}

/// A small line without marks.
export function spark(canvas, data, view, name, top) {
  const { g, width, height } = begin(canvas), box = { x: 0, y: 3, width, height: height - 6 };
  const count = resolution(data, view, width), values = columns(data, name, view.from, view.to, count);
  const greatest = top ?? (values.reduce((a, b) => Math.max(a, b ?? 0), 0) * 1.15 || 1);
  const y = (value) => box.y + box.height * (1 - Math.min(1, value / greatest));
  g.fillStyle = view.colours.rule;
  g.fillRect(0, height - 3, width, 1);
  g.strokeStyle = g.fillStyle = view.colours.kinds[0];
  g.lineWidth = 1.5;
  stroke(g, box, values, breaks(data, view, count), y, true);
  cross(g, box, view);
  return values.some((v) => v !== null);
}

/// All that is kept, with what is shown of it.
export function strip(canvas, data, view, name) {
  const { g, width, height } = begin(canvas), c = view.colours, box = { x: 0, y: 2, width, height: height - 4 };
  g.fillStyle = c.soft;
  g.beginPath();
  g.roundRect(0, 0, width, height, 6);
  g.fill();
  const all = { from: view.first, to: view.last };
  const count = resolution(data, all, width), values = columns(data, name, all.from, all.to, count);
  const top = values.reduce((a, b) => Math.max(a, b ?? 0), 0) || 1;
  g.strokeStyle = c.muted;
  stroke(g, box, values, breaks(data, all, count), (v) => box.y + box.height * (1 - (v / top) * 0.94), false);
  const x = (t) => Math.max(0, Math.min(width, ((t - all.from) / (all.to - all.from || 1)) * width));
  const from = x(view.from), to = Math.max(x(view.to), from + 3);
  g.fillStyle = g.strokeStyle = c.link;
  g.globalAlpha = 0.16;
  g.fillRect(from, 0, to - from, height);
  g.globalAlpha = 1;
  g.strokeRect(from + 0.5, 0.5, to - from - 1, height - 1);
  return values.some((v) => v !== null);
}

/// The time at a place of a canvas, by where its plot is.
export function timeAt(canvas, view, clientX) {
  const box = canvas.getBoundingClientRect(), kind = canvas.dataset.kind;
  const left = LEFT[kind] ?? 0, right = kind === "spark" ? 0 : 4;
  const part = (clientX - box.left - left) / Math.max(1, box.width - left - right);
  return view.from + Math.max(0, Math.min(1, part)) * (view.to - view.from);
}
