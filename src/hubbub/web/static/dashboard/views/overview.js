// What goes on, and what needs attention first.

import { get } from "../api.js";
import { Chart, Figures } from "../chart.js";
import { bytes, el, ms, number, panel, rate, say, span } from "../show.js";

const sum = (numbers) => Object.values(numbers).reduce((all, one) => all + one, 0);
const TILES = [
  ["published", (now) => rate(now.rates.messages_in)], ["delivered", (now) => rate(now.rates.messages_out)],
  ["clients", (now) => number(now.client_count)], ["sessions away", (now) => number(now.sessions_away)],
  ["in", (now) => `${bytes(now.rates.bytes_received)}/s`], ["out", (now) => `${bytes(now.rates.bytes_sent)}/s`],
  ["retained", (now) => number(now.retained)], ["queues", (now) => number(now.queue_count)],
  ["latency", (now, figures) => ms(figures.delivery_ms_50?.at(-1) ?? 0)],
  ["published in all", (now) => number(now.messages_in)], ["lost in all", (now) => number(now.lost ?? sum(now.dropped))],
];
const RATES = ["messages_in", "messages_out", "bytes_received", "bytes_sent"];
const METERS = [
  ["connections", (now) => now.connections, (now) => count(now) * now.limits.connections, number],
  ["lasting sessions", (now, figures) => figures.lasting?.at(-1) ?? 0, (now) => count(now) * now.limits.lasting, number],
  ["retained", (now) => now.retained, (now) => now.limits.retained, number],
  ["queues", (now) => now.queue_count, (now) => count(now) * now.limits.queues, number],
  ["open calls", (now, figures) => figures.calls_open?.at(-1) ?? 0, (now) => count(now) * now.limits.calls_open, number],
  ["waits for the disk", (now) => now.journal.waiting_bytes, (now) => now.limits.waiting_bytes, bytes],
  ["disk", (now) => now.limits.disk_bytes - now.limits.disk_free, (now) => now.limits.disk_bytes, bytes],
];
/** Of the processes; each has bounds of its own. */
const count = (now) => now.processes?.length ?? 1;
const SUMMED = ["client_count", "connections", "sessions_away", "queue_count", "lost", ...RATES];
const NAMED = 3; // queues with the same need: of more their number is said
const LATELY = 60; // points: ten minutes

export class Overview {
  constructor(again) {
    this.tiles = TILES.map(([name]) => el("dd", {}, "–"));
    this.attention = el("ul", { class: "list" });
    this.meters = METERS.map(([name]) => {
      const bar = el("div", { class: "meter" }, el("i")), words = el("span", {}, "–");
      return { bar, words, cells: [el("span", {}, name), bar, words] };
    });
    this.about = el("p", { class: "dim" });
    const charts = [
      new Chart("Messages a second", [["published", "published"], ["delivered", "delivered"], ["dropped", "lost"]], number),
      new Chart("Latency, 99 of 100 within", [["delivery_ms_99", "delivery"], ["commit_ms_99", "commit"], ["loop_ms_99", "loop"]], ms),
      new Chart("Network", [["bytes_received", "in"], ["bytes_sent", "out"]], (value) => `${bytes(value)}/s`),
      new Chart("Clients", [["clients", "connected"], ["lasting", "lasting sessions"]], number),
      new Chart("Processor", [["cpu", "in use"]], (value) => `${number(100 * value)} %`),
      new Chart("Memory", [["memory", "of the hub"]], bytes),
    ];
    this.figures = new Figures(charts, get, again);
    this.element = el("div", {},
      el("dl", { class: "tiles" }, ...TILES.map(([name], at) => el("div", {}, el("dt", {}, name), this.tiles[at]))),
      el("div", { class: "pair" },
        panel("Needs attention", this.attention),
        panel("Against their limits", el("div", { class: "meters" }, ...this.meters.flatMap((one) => one.cells)))),
      this.figures.element,
      el("div", { class: "pair" }, ...charts.map((chart) => chart.element)), this.about);
  }

  async refresh() {
    const now = await get("status", { limit: 200 });
    for (const name of now.processes ? SUMMED : [])
      now[name] = sum(now.processes.map((one) => one[name] ?? 0));
    if (now.processes) now.dropped = together(now.processes.map((one) => one.dropped ?? {}));
    await this.figures.refresh(now.time);
    const before = now.processes || this.before?.started === now.started ? this.before : undefined;
    const seconds = before ? (now.time - before.time) / 1e6 : 0;
    now.rates = {};
    for (const name of RATES) now.rates[name] = seconds > 0 ? more(before, now, name) / seconds : this.first(name);
    this.before = now;
    TILES.forEach(([, text], at) => say(this.tiles[at], text(now, this.figures.figures)));
    METERS.forEach(([, value, most, words], at) => this.meter(this.meters[at], value(now, this.figures.figures), most(now), words));
    this.list(needs(now, this.figures.figures));
    say(this.about, `Version ${now.version}, ${now.compiled ? "compiled" : "plain Python"}, up ${span((now.time - now.started) / 1e6)}, `
      + `listening on ${now.listeners.join(", ")}.`
      + (now.process ? ` Journal, pipelines, rates of topics and what queues need are those of process ${now.process}; another time perhaps of another one.` : ""));
  }

  /** Before there are two answers to compare: the last point of the figures. */
  first(name) {
    const column = { messages_in: "published", messages_out: "delivered" }[name] ?? name;
    return this.figures.figures[column]?.at(-1) ?? 0;
  }

  meter({ bar, words }, value, most, text) {
    const part = most ? Math.min(100, 100 * value / most) : 0;
    bar.firstChild.style.setProperty("--part", part);
    bar.className = `meter ${part > 95 ? "bad" : part > 80 ? "warn" : ""}`;
    say(words, most ? `${text(value)} of ${text(most)}` : "–");
  }

  list(found) {
    const words = found.length ? found : [["good", "Nothing."]];
    if (JSON.stringify(words) === this.listed) return;
    this.listed = JSON.stringify(words);
    this.attention.replaceChildren(...words.map(([kind, text]) => el("li", { class: kind }, text)));
  }

  recolour() { this.figures.recolour(); }
  stop() { this.figures.stop(); }
}

/** [how bad, what], the worst first. */
function needs(now, figures) {
  const found = [], late = (name) => figures[name].slice(-LATELY);
  const add = (kind, text) => found.push([kind, text]);
  for (const one of now.processes ?? [])
    if (!one.up) add("bad", `Process ${one.process} of ${now.processes.length} does not answer`);
    else if (one.trouble) add("bad", `Process ${one.process}: the journal cannot be written: ${one.trouble}`);
  for (const one of now.processes ?? [])
    if (one.process !== parseInt(now.process))
      for (const text of one.attention ?? []) add("bad", `Process ${one.process}: ${text}`);
  if (now.journal.trouble) add("bad", `The journal cannot be written: ${now.journal.trouble}`);
  if (now.limits.not_taken) add("bad", `${now.limits.not_taken}: what would stay on the disk is refused`);
  if (now.limits.shared_out) add("warn", `The disk fills: ${now.limits.shared_out}`);
  for (const bridge of now.bridges) if (!bridge.up) add("bad", `The bridge ${bridge.name} is ${bridge.cut_off ? "cut off by hand" : "down"}`);
  if (now.cluster?.trouble) add("bad", `The cluster: ${now.cluster.trouble}`);
  if (now.cluster?.copies?.survives_power_loss === "no")
    add("warn", `Copies do not survive a loss of power of all servers: ${now.cluster.copies.power_loss}`);
  for (const node of now.cluster?.away ?? [])
    if (node.waiting) add("warn", `Node ${node.name} is away, and ${number(node.waiting)} messages wait for it`);
  for (const [name, value, most] of METERS)
    if (most(now) && value(now, figures) > 0.8 * most(now)) add("warn", `${name}: over 80 % of what there may be`);
  const queues = (kind, are, those, words) => {
    for (const queue of those.slice(0, NAMED)) add(kind, `Queue ${queue.name} ${words(queue)}`);
    const more = those.length - NAMED, beyond = those.at(-1) === now.queues.at(-1) && now.queues.length < now.queue_count;
    if (more > 0) add(kind, `${number(more)} ${beyond ? "or more " : ""}other queues ${are}`);
  };
  const unread = (queue) => queue.waits > 60 && queue.away !== 0;
  queues("bad", "are full", now.queues.filter((queue) => queue.full), (queue) => `is full: what comes is turned away. It holds ${number(queue.messages)}`
    + (unread(queue) ? `, the oldest for ${span(queue.waits)}, and nobody reads it` : ""));
  queues("warn", "wait, and nobody reads them", now.queues.filter((queue) => queue.messages && !queue.full && unread(queue)), (queue) =>
    `has ${number(queue.messages)}, the oldest for ${span(queue.waits)}, and nobody reads it`);
  for (const one of now.pipeline ?? []) {
    if (one.state === "failed") add("warn", `The pipeline ${one.name} failed: see Pipeline`);
    if (one.state === "silent") add("warn", `The pipeline ${one.name} says nothing any more`);
    if (one.state === "behind") add("warn", `The pipeline ${one.name} is behind by ${span(one.behind_seconds ?? 0)}`);
  }
  const seconds = 10, lost = late("dropped").reduce((all, one) => all + one * seconds, 0);
  if (lost >= 1) add("warn", `${number(Math.round(lost))} messages were lost in the last ten minutes: ${reasons(now.dropped)}`);
  const logins = late("logins_refused").reduce((all, one) => all + one * seconds, 0);
  if (logins >= 10) add("warn", `${number(Math.round(logins))} logins were refused in the last ten minutes: see Security`);
  if (Math.max(0, ...late("loop_ms_99").slice(-6)) > 250) add("warn", "The hub comes late to its work: its processor is full");
  if (Math.max(0, ...late("commit_ms_99").slice(-6)) > 1000) add("warn", "The disk is slow: commits take more than a second");
  if (now.journal.folds_failed) add("warn", `${number(now.journal.folds_failed)} folds of the journal failed: see the log`);
  return found.sort(([one], [other]) => (one === other ? 0 : one === "bad" ? -1 : 1)).slice(0, 12);
}

/** How much more it is than before, of the processes that were there both times. */
function more(before, now, name) {
  if (!now.processes) return Math.max(0, now[name] - before[name]);
  const was = (one) => before.processes?.find((other) => one.up && other.process === one.process && other.started === one.started);
  return sum(now.processes.map((one) => Math.max(0, one[name] - (was(one)?.[name] ?? one[name]) || 0)));
}

/** Counts by name, of all together. */
function together(counts) {
  const found = {};
  for (const [name, count] of counts.flatMap(Object.entries)) found[name] = (found[name] ?? 0) + count;
  return found;
}

const reasons = (dropped) =>
  Object.entries(dropped).sort((one, other) => other[1] - one[1]).slice(0, 3).map(([why, count]) => `${why} (${number(count)} in all)`).join(", ");
