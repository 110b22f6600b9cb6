// The monitor's page: listens to moments, keeps an hour of their numbers, and shows them. It changes nothing on the server.
import { colours, heat, lines, spark, stack, strip, timeAt } from "./plots.js";

const KEPT_S = 3600, MOST = 9000;
const $ = (id) => document.getElementById(id);
const element = (name, attributes = {}, ...children) => {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("--")) node.style.setProperty(key, value);
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
};

/// Text from elsewhere: characters that are not seen, such as marks of direction, are shown as their numbers.
const shown = (text) =>
  String(text ?? "").replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cn}\u2028\u2029\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0]/gu, (c) =>
    [...Array(c.length).keys()].map((i) => `\\u${c.charCodeAt(i).toString(16).padStart(4, "0")}`).join(""));

// Numbers for people: three digits that count, and a prefix.
const PREFIXES = {
  s: [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]],
  B: [[1024 ** 4, "TiB"], [1024 ** 3, "GiB"], [1024 ** 2, "MiB"], [1024, "KiB"], [1, "B"]],
};
const JOINED = new Set(["B/s", "flop/s", "flop", "W", "J", "Hz"]);
function digits(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  const decimals = Math.max(0, Math.min(5, 2 - Math.floor(Math.log10(Number(size.toPrecision(3))))));
  return value.toFixed(decimals).replace("-", "−");
}
function quantity(value, unit, greatest = value) {
  if (unit === "%") return `${Math.abs(value) >= 10 || value === 0 ? value.toFixed(0) : value.toFixed(1)}\u202f%`;
  if (["", "1", "count", "level", "flag"].includes(unit)) return Number.isInteger(value) ? String(value) : digits(value);
  if (unit === "°C") return `${value.toFixed(1)}\u00a0°C`;
  const size = Math.abs(greatest);
  if (!PREFIXES[unit] && !JOINED.has(unit) && Number.isInteger(value) && size < 1e6) return `${value}\u00a0${unit}`;
  const [per, label] = scale(greatest, unit);
  return `${digits(value / per)}\u00a0${label}`;
}
/// How the numbers of a unit are written: divided by something, with a label.
function scale(greatest, unit) {
  if (unit === "%" || unit === "°C") return [1, unit];
  const steps = PREFIXES[unit] ?? [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
  const [per, prefix] = steps.find(([per]) => Math.abs(greatest) >= per * 0.9995) ?? steps[steps.length - 1];
  return [per, PREFIXES[unit] ? prefix : JOINED.has(unit) || !prefix ? `${prefix}${unit}` : `${prefix} ${unit}`];
}
/// A figure with its origin, as everywhere in this project.
function figure(f) {
  if (!f) return element("span", { class: "f u" }, "not told");
  if (f.value === null || f.value === undefined) return element("span", { class: "f u", title: shown(f.reason) }, "unavailable");
  const kind = { measured: "m", derived: "d", predicted: "p" }[f.provenance] ?? "u";
  return element("span", { class: `f ${kind}`, title: `${f.provenance}: ${shown(f.source)}` }, quantity(f.value, f.unit));
}
const known = (f) => f && f.value !== null && f.value !== undefined;

/// The numbers of the last hour, in columns. Times are in seconds since 1970, so that another start of the server fits in.
class Past {
  constructor() { this.clear(); }
  clear() {
    [this.from, this.to, this.gap] = [[], [], []];
    [this.values, this.together, this.units] = [new Map(), new Map(), new Map()];
  }
  get length() { return this.to.length; }
  get first() { return this.from[0] ?? 0; }
  get last() { return this.to[this.length - 1] ?? 0; }
  /// The first moment that ends after a time.
  after(time) {
    let [low, high] = [0, this.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.to[middle] > time) high = middle; else low = middle + 1;
    }
    return low;
  }
  spacing(from, to) {
    const count = this.after(to) - this.after(from);
    return count > 1 ? (Math.min(to, this.last) - Math.max(from, this.first)) / count : (to - from) / 60;
  }
  column(name, unit, together) {
    if (!this.values.has(name)) {
      if (this.values.size > 600) return null;
      this.values.set(name, new Array(this.length).fill(NaN));
      this.together.set(name, together ?? TOGETHER[name] ?? "mean");
      this.units.set(name, unit);
    }
    return this.values.get(name);
  }
  /// Forgets what is not before a time: it is told anew.
  cut(time) {
    while (this.length > 0 && this.last > time + 1e-3) {
      this.from.pop(); this.to.pop(); this.gap.pop();
      this.values.forEach((column) => column.pop());
    }
  }
  add(from, to, gap) {
    this.from.push(from); this.to.push(to); this.gap.push(gap || (this.length > 0 && from - this.last > 1.5 * (to - from) + 0.05));
    this.values.forEach((column) => column.push(NaN));
  }
  /// Keeps an hour, and of very frequent moments the last ones.
  trim() {
    let drop = this.after(this.last - KEPT_S);
    if (this.length - drop > MOST) drop = this.length - MOST + 600;
    if (drop < 200 && this.length <= MOST) return;
    [this.from, this.to, this.gap] = [this.from.slice(drop), this.to.slice(drop), this.gap.slice(drop)];
    this.values.forEach((column, name) => this.values.set(name, column.slice(drop)));
  }
}
const TOGETHER = { "latency.p95": "greatest", "latency.p99": "greatest", "latency.max": "greatest", "latency.total": "greatest", "latency.misses_total": "greatest", "latency.min": "least", "latency.runs": "sum", "latency.misses": "sum" };

const past = new Past();
const state = { about: null, moment: null, number: null, heard: 0, gapNext: false, alerts: [], ended: null, connection: "connecting", tries: 0, lost: 0 };
const view = { span: 60, end: null, cursor: null, from: 0, to: 0, first: 0, last: 0, colours: colours(), scale };

// Moments as they come.
function figures(m) {
  const out = [];
  for (const part of ["latency", "work", "memory"]) for (const [name, f] of Object.entries(m[part])) out.push([`${part}.${name}`, f]);
  for (const o of m.operations) out.push([`operations.${o.name}`, o.share]);
  for (const [name, f] of Object.entries(m.machine)) out.push([`machine.${name}`, f]);
  return out;
}
function take(m) {
  const to = state.about.began_s + m.at_s, from = to - m.span_s;
  past.cut(from);
  const lost = state.number !== null && m.number > state.number + 1 ? m.number - state.number - 1 : 0;
  state.lost += lost;
  past.add(from, to, lost > 0 || state.gapNext);
  for (const [name, f] of figures(m)) {
    const column = past.column(name, f.unit);
    if (column && known(f)) column[past.length - 1] = f.value;
  }
  past.trim();
  for (const alert of state.alerts) if (alert.to_s === null && !m.alerts?.includes(alert.rule)) alert.to_s = m.at_s;
  for (const rule of m.alerts ?? []) {
    if (!state.alerts.some((a) => a.to_s === null && a.rule === rule)) state.alerts.unshift({ rule, from_s: m.at_s, to_s: null });
  }
  state.alerts.length = Math.min(state.alerts.length, 500);
  Object.assign(state, { moment: m, number: m.number, heard: Date.now(), gapNext: false });
}
function begin(about) {
  if (state.about && (state.about.model !== about.model || about.began_s < state.about.began_s)) past.clear();
  Object.assign(state, { about, number: null, ended: null, alerts: [], lost: 0 });
  $("model").textContent = shown(about.model);
  document.title = `${shown(about.model)} – Schwann monitor`;
  const sizes = Object.entries(about.sizes).map(([name, size]) => `${shown(name)}=${size}`).join(" ");
  const facts = [about.machine, about.backend, `${about.threads} thread${about.threads === 1 ? "" : "s"}`, sizes, `${about.program}, process ${about.pid}`];
  if (about.deadline_s) facts.push(`deadline ${quantity(about.deadline_s, "s")}`);
  $("facts").replaceChildren(...facts.filter(Boolean).map((text) => element("span", {}, shown(text))));
}
function recall(told) {
  const began = state.about.began_s;
  if (told.to.length > 0) past.cut(began + told.from[0]);
  const columns = told.names.map((n) => past.column(n.name, n.unit, n.together));
  told.to.forEach((to, i) => {
    past.add(began + told.from[i], began + to, told.gap[i] === 1);
    columns.forEach((column, place) => { if (column && told.values[place][i] !== null) column[past.length - 1] = told.values[place][i]; });
  });
  state.alerts = told.alerts;
  state.gapNext = told.gap_after;
}

// The connection. An EventSource gives up at some errors, so each is replaced by a new one after a while.
function connect() {
  const source = new EventSource("events");
  const on = (name, act) => source.addEventListener(name, (event) => { act(JSON.parse(event.data)); draw(); });
  source.onopen = () => { Object.assign(state, { connection: "live", tries: 0, heard: Date.now() }); draw(); };
  source.onerror = () => {
    source.close();
    Object.assign(state, { connection: "reconnecting", tries: state.tries + 1 });
    setTimeout(connect, Math.min(3000, 400 * 1.5 ** state.tries));
    draw();
  };
  on("about", begin);
  on("past", recall);
  on("moment", take);
  on("ended", (why) => { state.ended = why; });
}

// What is shown.
function place() {
  view.last = past.last;
  view.first = Math.min(past.first, past.last - 1);
  if (view.end !== null) view.end = Math.max(Math.min(view.end, view.last), Math.min(view.last, view.first + Math.min(view.span, view.last - view.first)));
  view.to = view.end ?? view.last;
  view.from = view.to - view.span;
}
const time = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });

function status() {
  const silent = state.about && Date.now() - state.heard > Math.max(3000, 4000 * state.about.every_s);
  const named = state.connection === "live" && state.ended !== null ? "ended" : state.connection === "live" && silent ? "silent" : state.connection;
  const words = { live: "live", connecting: "connecting", reconnecting: `no connection; trying again (${state.tries})`, silent: "no moments come", ended: "ended" };
  const pill = $("state");
  if (pill.dataset.state !== named || named === "reconnecting") {
    pill.dataset.state = named;
    pill.lastElementChild.textContent = words[named];
  }
  const banner = $("banner"), text = state.ended !== null && named === "ended" ? `${shown(state.ended)}. What is shown stays until this page is closed.`
    : named === "reconnecting" && state.about ? "The monitor does not answer: it has ended, or the network is away. This page tries again by itself." : "";
  banner.hidden = text === "";
  if (banner.textContent !== text) banner.textContent = text;
  const back = view.end !== null;
  $("pause").setAttribute("aria-pressed", back);
  $("pause").textContent = back ? "Go on" : "Pause";
  $("shown").textContent = past.length === 0 ? "" : `${view.cursor !== null ? "at " : "to "}${time(view.cursor ?? view.to)}${state.lost > 0 ? `, ${state.lost} moments lost` : ""}`;
  document.querySelectorAll("[data-span]").forEach((b) => b.setAttribute("aria-pressed", Number(b.dataset.span) === view.span));
}

/// A name's number at the cursor, or the last one.
function at(name) {
  const column = past.values.get(name);
  if (!column) return null;
  const i = view.cursor === null && view.end === null ? past.length - 1 : past.after((view.cursor ?? view.to) - 1e-3);
  const value = column[Math.min(i, past.length - 1)];
  return value === value && value !== undefined ? value : null;
}
function keys(name, entries) {
  const nodes = entries.map(([text, kind, value, extra]) => {
    const style = kind === null ? {} : { "--c": kind === "bad" ? view.colours.bad : view.colours.kinds[kind] };
    return element("li", { ...style, class: kind === null ? "plain" : extra ?? "" }, `${text} `, typeof value === "string" ? element("b", {}, value) : value ?? "");
  });
  document.querySelector(`[data-keys="${name}"]`).replaceChildren(...nodes);
}
const number = (name, unit) => { const v = at(name); return v === null ? "–" : quantity(v, unit); };

/// A plot, or the reason why there is none.
function plot(name, kind, reason, act) {
  const canvas = document.querySelector(`canvas[data-plot="${name}"]`);
  canvas.dataset.kind = kind;
  const holder = canvas.parentElement;
  let why = holder.querySelector(":scope > .why.plotless");
  canvas.hidden = reason !== null;
  if (reason !== null) {
    why ??= canvas.insertAdjacentElement("afterend", element("p", { class: "why plotless" }));
    why.replaceChildren(element("b", {}, "unavailable: "), shown(reason));
    delete canvas.dataset.drawn;
    return;
  }
  why?.remove();
  canvas.dataset.drawn = act(canvas) ? "yes" : "empty";
}
/// Why a name has no plot: nothing of it is known in the shown time.
function reason(f, ...names) {
  const some = names.some((name) => past.values.get(name)?.slice(past.after(view.from), past.after(view.to) + 1).some((v) => v === v));
  return some || known(f) ? null : f?.reason ?? "nobody says why";
}

function tiles(m) {
  const l = m.latency, share = m.work.roof_share;
  const tile = (name, f, small, bad) => element("div", {}, element("dt", {}, name), element("dd", { class: known(f) ? (bad ? "bad" : "") : "unknown" }, figure(f), element("small", {}, known(f) ? small : shown(f?.reason))));
  const of = known(m.work.flops) ? `${quantity(m.work.flops.value, m.work.flops.unit)}` : "";
  $("tiles").replaceChildren(
    tile("half of the runs within", l.p50, known(l.min) ? `least ${quantity(l.min.value, "s")}` : ""),
    tile("99 of 100 within", l.p99, known(l.max) ? `longest ${quantity(l.max.value, "s")}` : ""),
    tile("deadline missed", l.misses, known(l.misses_total) ? `${quantity(l.misses_total.value, "count")} in all` : "", known(l.misses) && l.misses.value > 0),
    tile("rate", l.rate, known(l.busy) ? `${quantity(l.busy.value, "%")} of the time in runs` : ""),
    tile("of the roof", share, of),
    tile("resident memory", m.memory.rss, known(m.memory.arena) ? `arena ${quantity(m.memory.arena.value, "B")}` : ""));
}

function operations(m) {
  const list = m.operations, names = list.map((o) => `operations.${o.name}`), top = names.slice(0, 6), rest = names.slice(6);
  $("operations-say").textContent = list.length > 0 ? `${list[0].share.provenance}: ${shown(list[0].share.source)}` : "";
  $("ops").replaceChildren(...list.slice(0, 12).map((o, i) => element("li", { "--c": view.colours.kinds[Math.min(i, 6)], "--w": `${Math.min(100, o.share.value ?? 0)}%`, title: `${shown(o.name)}: ${shown(o.kernel)}` },
    element("i"), element("span", { class: "who" }, shown(o.name), element("small", {}, shown(o.kernel))), element("span", { class: "part" }),
    element("span", { class: "n" }, known(o.share) ? quantity(o.share.value, "%") : "–"), element("span", { class: "n" }, figure(o.time)))));
  plot("operations", "stack", list.length === 0 && !top.length ? m.operations_reason ?? "no run was watched in this moment" : null, (canvas) => stack(canvas, past, view, [...top.map((n) => [n]), rest]));
}

function coreRows(kind) {
  const rows = [];
  for (const name of past.values.keys()) {
    const found = new RegExp(`^machine\\.cpu(\\d+)_${kind}$`).exec(name);
    if (found) rows.push({ name, label: found[1] });
  }
  return rows.sort((a, b) => a.label - b.label);
}
function cores(m) {
  const load = coreRows("load"), clock = coreRows("frequency");
  const cpu = m.machine.cpu_load, mean = m.machine.cpu_frequency;
  plot("load", "heat", load.length ? null : cpu?.reason ?? "the machine tells no load by core", (c) => heat(c, past, view, load, 0, 100));
  keys("load", load.length ? [["all cores", null, number("machine.cpu_load", "%")], ["0 % pale, 100 % full", null, ""]] : []);
  const all = clock.flatMap((row) => past.values.get(row.name).slice(past.after(view.from), past.after(view.to) + 1).filter((v) => v === v));
  let [least, greatest] = [Infinity, 0];
  for (const value of all) { least = Math.min(least, value); greatest = Math.max(greatest, value); }
  const why = clock.length && all.length ? null : clock.map((row) => m.machine[row.name.slice(8)]?.reason).find(Boolean) ?? mean?.reason ?? "the machine tells no clock by core";
  plot("clock", "heat", why, (c) => heat(c, past, view, clock, Math.min(least, greatest * 0.9), greatest));
  keys("clock", why === null ? [["mean", null, number("machine.cpu_frequency", "Hz")], [`${quantity(least, "Hz")} pale, ${quantity(greatest, "Hz")} full`, null, ""]] : []);
}

const WORDS = { cpu: "CPU", gpu: "GPU", ane: "Neural Engine", dram: "DRAM", frequency: "clock" };
const label = (name) => shown(name.split("_").map((w) => WORDS[w] ?? w).join(" "));
function readings(m) {
  const wanted = Object.keys(m.machine).filter((n) => /^(temperature_|.*_power$|gpu\d*_(load|frequency|memory_used)$|ane_|dram_bandwidth$)/.test(n));
  const rank = (n) => (known(m.machine[n]) ? 0 : 10) + ["package_power", "cpu_power", "temperature_cpu", "gpu_load", "gpu_power", "ane_power"].indexOf(n) / 10;
  wanted.sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
  const holder = $("readings"), old = new Map([...holder.children].map((node) => [node.dataset.name, node]));
  const nodes = wanted.slice(0, 40).map((name) => {
    const f = m.machine[name], node = old.get(name) ?? element("div", { "data-name": name });
    if (!known(f)) {
      node.className = "none";
      node.replaceChildren(element("div", { class: "name" }, label(name), figure(f)), element("p", {}, shown(f.reason)));
      return node;
    }
    node.className = "";
    let canvas = node.querySelector("canvas");
    const here = at(`machine.${name}`);
    const head = element("div", { class: "name" }, label(name), element("b", {}, view.cursor === null || here === null ? figure(f) : quantity(here, f.unit)));
    canvas ??= element("canvas", { class: "spark", "data-plot": `machine.${name}`, role: "img", "aria-label": `${label(name)} over time` });
    node.replaceChildren(head, canvas);
    return node;
  });
  holder.replaceChildren(...nodes);
  for (const canvas of holder.querySelectorAll("canvas")) {
    canvas.dataset.kind = "spark";
    const name = canvas.dataset.plot;
    canvas.dataset.drawn = spark(canvas, past, view, name, past.units.get(name) === "%" ? 100 : undefined) ? "yes" : "empty";
  }
}

function memory(m) {
  const rss = m.memory.rss;
  keys("memory", [["resident", 0, number("memory.rss", "B")]]);
  plot("memory", "lines", reason(rss, "memory.rss"), (c) => lines(c, past, view, { lines: [{ name: "memory.rss", kind: 0, fill: true }], unit: "B" }));
  const rows = [["arena of a session", m.memory.arena], ["packed weights", m.memory.weights], ["pool for reuse", m.memory.pool], ["machine, available", m.machine.memory_available], ["machine, in all", m.machine.memory_total]];
  $("memory").replaceChildren(...rows.filter(([, f]) => f).map(([name, f]) => element("div", {}, element("dt", {}, name), element("dd", {}, figure(f), known(f) ? "" : element("small", {}, ` ${shown(f.reason)}`)))));
}

function alerts() {
  const began = state.about.began_s;
  const rows = state.alerts.slice(0, 50).map((a) => element("li", { class: a.to_s === null ? "holds" : "" }, element("span", {}, time(began + a.from_s)),
    element("span", {}, a.to_s === null ? `holds for ${Math.round(state.moment.at_s - a.from_s)} s` : `held for ${Math.round(a.to_s - a.from_s)} s`), element("span", { class: "rule" }, shown(a.rule))));
  $("alerts").replaceChildren(...(rows.length ? rows : [element("li", { class: "none" }, "No rule has held.")]));
}

function table(m) {
  if (!$("figures").closest("details").open) return;
  $("figures").replaceChildren(...figures(m).map(([name, f]) => element("tr", {}, element("td", {}, shown(name)), element("td", { class: "n" }, known(f) ? quantity(f.value, f.unit) : "–"), element("td", {}, known(f) ? f.provenance : "unavailable"), element("td", { class: "words" }, shown(known(f) ? f.source : f.reason)))));
}

function paint() {
  place();
  status();
  const m = state.moment;
  if (!m) return;
  const limit = state.about.deadline_s;
  tiles(m);
  const misses = at("latency.misses");
  keys("latency", [["p50", 0, number("latency.p50", "s")], ["p99", 1, number("latency.p99", "s")], ...(limit ? [["deadline", "bad", quantity(limit, "s"), "dash"], ["missed", null, misses === null ? "–" : quantity(misses, "count")]] : [])]);
  plot("latency", "lines", reason(m.latency.p50, "latency.p50", "latency.p99"), (c) => lines(c, past, view, { lines: [{ name: "latency.p99", kind: 1 }, { name: "latency.p50", kind: 0, fill: true }], limit, ticks: limit ? "latency.misses" : null, unit: "s" }));
  for (const [name, f, roof] of [["flops", m.work.flops, state.about.flops_roof], ["bandwidth", m.work.bandwidth, state.about.bandwidth_roof]]) {
    const key = `work.${name}`;
    keys(name, [["reached", 0, number(key, f.unit)], known(roof) ? ["roof", "bad", figure(roof), "dash"] : ["roof", null, figure(roof)]]);
    plot(name, "lines", reason(f, key), (c) => lines(c, past, view, { lines: [{ name: key, kind: 0, fill: true }], limit: roof?.value, unit: f.unit }));
  }
  operations(m);
  memory(m);
  cores(m);
  readings(m);
  alerts();
  table(m);
  plot("timeline", "strip", null, (c) => strip(c, past, view, "latency.p99"));
  document.documentElement.dataset.ready = "";
}
let asked = false;
function draw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => { asked = false; paint(); });
}

// What people do.
const pause = () => { view.end = view.end === null ? view.last : null; draw(); };
const back = (part) => { view.end = (view.end ?? view.last) + part * view.span; place(); draw(); };
const zoom = (by) => {
  const spans = [60, 300, 900, 3600], next = spans.indexOf(view.span) + by;
  if (spans[next]) view.span = spans[next];
  draw();
};
$("pause").addEventListener("click", pause);
document.querySelectorAll("[data-span]").forEach((button) => button.addEventListener("click", () => { view.span = Number(button.dataset.span); draw(); }));
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || ["BUTTON", "SUMMARY"].includes(event.target.tagName)) return;
  const act = { " ": pause, ArrowLeft: () => back(-0.25), ArrowRight: () => back(0.25), "+": () => zoom(-1), "=": () => zoom(-1), "-": () => zoom(1) }[event.key];
  if (act) { event.preventDefault(); act(); }
});
let drag = null;
document.addEventListener("pointerdown", (event) => {
  const canvas = event.target.closest("canvas");
  if (!canvas || event.button !== 0) return;
  drag = { canvas, x: event.clientX, end: view.end ?? view.last, moved: false };
  if (canvas.id === "timeline") { jump(event); drag.moved = true; }
});
function jump(event) {
  const box = $("timeline").getBoundingClientRect(), part = (event.clientX - box.left) / box.width;
  view.end = view.first + part * (view.last - view.first) + view.span / 2;
  draw();
}
document.addEventListener("pointermove", (event) => {
  const canvas = event.target.closest?.("canvas");
  if (drag?.canvas.id === "timeline") return jump(event);
  if (drag && Math.abs(event.clientX - drag.x) > 6) drag.moved = true;
  if (drag?.moved) {
    view.end = drag.end - ((event.clientX - drag.x) / drag.canvas.getBoundingClientRect().width) * view.span;
    view.cursor = null;
    return draw();
  }
  const cursor = canvas && canvas.id !== "timeline" && past.length > 0 ? timeAt(canvas, view, event.clientX) : null;
  if (cursor !== view.cursor) { view.cursor = cursor; draw(); }
});
const drop = (event) => {
  if (drag && !drag.moved && drag.canvas.id !== "timeline") { view.cursor = timeAt(drag.canvas, view, event.clientX); draw(); }
  drag = null;
};
document.addEventListener("pointerup", drop);
document.addEventListener("pointercancel", () => { drag = null; });
document.documentElement.addEventListener("pointerleave", () => { view.cursor = null; draw(); });
window.addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { view.colours = colours(); draw(); });
$("figures").closest("details").addEventListener("toggle", draw);
setInterval(() => { place(); status(); }, 1000);
connect();
