// A chart over time of columns of the hub's figures, drawn by uPlot (uplot/FROM.txt).

import uPlot from "./uplot/uPlot.js";
import { el, say } from "./show.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** `lines`: [column, label]; `words`: how a value reads. */
export class Chart {
  constructor(title, lines, words) {
    this.lines = lines;
    this.words = words;
    this.data = [[], ...lines.map(() => [])];
    this.span = [0, 1]; // from when to when, in seconds: the same for all charts beside each other
    this.values = lines.map(() => el("b", {}, "–"));
    const legend = el("div", { class: "legend" }, ...lines.map(([, label], at) => {
      const mark = el("i");
      mark.style.background = `var(--line-${at + 1})`;
      return el("span", {}, mark, `${label} `, this.values[at]);
    }));
    this.box = el("div", { class: "chart", role: "img", "aria-label": `${title}, over time` });
    this.element = el("section", { class: "panel" }, el("h2", {}, title), legend, this.box);
    this.observer = new ResizeObserver(() => this.fit());
    this.observer.observe(this.box);
  }

  /** Drawn anew: at first, and when the colours are others. */
  make() {
    this.plot?.destroy();
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 },
      ticks: { show: false }, font: "12px system-ui" };
    this.plot = new uPlot({
      width: Math.max(100, this.box.clientWidth), height: this.box.clientHeight || 184,
      legend: { show: false }, cursor: { y: false, drag: { setScale: false } },
      scales: { x: { range: () => this.span }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), (high || 1) * 1.1] } },
      axes: [{ ...axis, size: 28, space: 64, values: times }, { ...axis, size: 64, values: (_, ticks) => ticks.map(this.words) }],
      series: [{}, ...this.lines.map(([, label], at) => ({
        label, stroke: colour(`--line-${at + 1}`), width: 1.5, points: { show: false },
      }))],
      hooks: { setCursor: [() => this.legend()] },
    }, this.data, this.box);
  }

  fit() {
    if (!this.box.clientWidth) return;
    if (!this.plot) this.make();
    else this.plot.setSize({ width: this.box.clientWidth, height: this.box.clientHeight });
  }

  /** `span`: from when to when, in seconds since 1970; it begins with what there is. */
  update(figures, [from, until]) {
    const first = figures.time.length ? figures.time[0] / 1e6 : from;
    this.span = [Math.max(from, Math.min(first, until - SHORTEST)), until];
    this.data = [figures.time.map((time) => time / 1e6), ...this.lines.map(([name]) => figures[name])];
    if (!this.plot) this.fit();
    this.plot?.setData(this.data);
    this.legend();
  }

  legend() {
    const at = this.plot?.cursor.idx ?? this.data[0].length - 1;
    this.values.forEach((value, line) => {
      const found = this.data[line + 1][at];
      say(value, found === undefined ? "–" : this.words(found));
    });
  }

  recolour() {
    if (this.plot) this.make();
  }

  stop() {
    this.observer.disconnect();
    this.plot?.destroy();
  }
}

const two = (part) => String(part).padStart(2, "0");
/** With seconds where there is less than a minute from one to the next. */
const times = (_, ticks, axis, space, step) => ticks.map((tick) => {
  const date = new Date(tick * 1000);
  return `${two(date.getHours())}:${two(date.getMinutes())}${step < 60 ? `:${two(date.getSeconds())}` : ""}`;
});

const SHORTEST = 60; // seconds: a hub that has just begun has a point or two
const RANGES = [["15 min", 900], ["1 h", 3_600], ["6 h", 21_600], ["24 h", 86_400]];
const POINTS = 400;

/** The figures of a stretch of time, for several charts, asked for again only as far as needed. */
export class Figures {
  constructor(charts, get, wanted = () => {}) {
    this.charts = charts;
    this.get = get;
    this.wanted = wanted;
    this.seconds = Number(localStorage.getItem("hubbub-range")) || 3_600;
    this.asked = 0;
    this.figures = undefined;
    this.buttons = RANGES.map(([name, seconds]) => el("button", {
      type: "button", "aria-pressed": String(seconds === this.seconds), onclick: () => this.choose(seconds),
    }, name));
    this.element = el("div", { class: "bar", role: "group", "aria-label": "How far back" }, ...this.buttons);
  }

  choose(seconds) {
    this.seconds = seconds;
    localStorage.setItem("hubbub-range", seconds);
    this.buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(RANGES[at][1] === seconds)));
    this.asked = 0;
    this.wanted();
  }

  /** A point comes every ten seconds; what was put together is asked for as a whole. */
  async refresh(now) {
    const every = Math.max(5, this.seconds / POINTS);
    if (performance.now() / 1000 - this.asked < every && this.figures) return;
    const since = Math.max(0, Math.round(now - this.seconds * 1e6));
    const { figures } = await this.get("figures", { since, most: POINTS });
    this.asked = performance.now() / 1000;
    this.figures = figures;
    for (const chart of this.charts) chart.update(figures, [now / 1e6 - this.seconds, now / 1e6]);
  }

  recolour() {
    for (const chart of this.charts) chart.recolour();
  }

  stop() {
    for (const chart of this.charts) chart.stop();
  }
}
