// The pipelines of this journal and their tables, as their processes say it themselves.

import { get } from "../api.js";
import { Chart } from "../chart.js";
import { bytes, clock, el, facts, number, panel, rate, say, span } from "../show.js";
import { Table } from "../table.js";

const RUNS = ["running", "behind"];
const ENDED = { stopped: "stopped", failed: "failed", silent: "last heard of" };
const KIND = { running: "good", behind: "warn", silent: "warn", failed: "bad", stopped: "dim" };
const known = (value, words) => (value === null || value === undefined ? "–" : words(value));

export class Pipeline {
  constructor() {
    this.shown = new Map();
    this.nothing = panel("No pipeline has made tables of this journal yet",
      el("p", {}, "It is a process of its own, beside the hub. Started on the hub's data directory, it is shown here. It needs Spark: pip install '.[pipeline]' where Hubbub's source is."),
      el("pre", { class: "payload", textContent: "hubbub pipeline run\nhubbub pipeline sql \"SELECT * FROM messages\"" }));
    this.place = el("div");
    this.element = el("div", {}, this.place, this.nothing);
  }

  async refresh() {
    const { pipeline, time } = await get("status", { limit: 0 });
    this.nothing.hidden = pipeline.length > 0;
    for (const one of pipeline) {
      if (!this.shown.has(one.name)) {
        this.shown.set(one.name, new One());
        this.place.append(this.shown.get(one.name).element);
      }
      this.shown.get(one.name).update(one, time);
    }
    for (const [name, one] of this.shown) {
      if (pipeline.some((other) => other.name === name)) continue;
      one.stop();
      one.element.remove();
      this.shown.delete(name);
    }
  }

  recolour() { for (const one of this.shown.values()) one.recolour(); }
  stop() { for (const one of this.shown.values()) one.stop(); }
}

const HOUR = 3_600;

class One {
  constructor() {
    this.name = el("span");
    this.state = el("span");
    this.facts = el("div");
    this.table = new Table({
      label: "Tables", nothing: "No table was written yet.", key: (row) => row.name, columns: [
        ["Table", (row) => row.name], ["Files", (row) => known(row.files, number), "number"],
        ["Bytes", (row) => known(row.bytes, bytes), "number"],
        ["Last batch took", (row) => known(row.seconds, span), "number"],
      ],
    });
    this.charts = [];
    this.drawn = el("div", { class: "pair" });
    this.element = el("div", {}, panel([this.name, this.state], this.facts, this.table.element), this.drawn);
  }

  update(one, now) {
    say(this.name, one.name);
    say(this.state, one.state);
    this.state.className = KIND[one.state] ?? "";
    const last = one.last_batch, error = one.last_error;
    const ago = `${span(Math.max(0, now - one.time) / 1e6)} ago`, rows = known(one.behind_rows, number);
    const said = [
      ["tables", one.tables],
      ...(RUNS.includes(one.state)
        ? [["heard of", `${ago}, started ${clock(one.started)}`],
          ["behind", `${rows} rows, the oldest for ${known(one.behind_seconds, span)}`]]
        : [[ENDED[one.state] ?? one.state, `${clock(one.time)}, ${ago}; started ${clock(one.started)}`],
          ["next", `goes on at row ${known(one.seq, (seq) => number(seq + 1))} when it is started again; ${rows} rows wait`]]),
      ["speed", rate(one.rows_per_second ?? 0)],
      ["since it was started", `${number(one.batches)} batches, ${number(one.rows)} rows, ${number(one.messages)} messages`],
      ["quarantined", `${number(one.quarantined)}, ${number(100 * (one.quarantine_rate ?? 0))} % of late`],
      ["lost rows", number(one.lost_rows)],
      ["last batch", last ? `${last.batch}: ${number(last.rows)} rows in ${span(last.seconds)}, ${clock(last.time)}` : "none yet"],
      ["last trouble", error ? `${clock(error.time)}: ${error.text}` : "none"],
    ];
    if (one.spark) said.splice(1, 0, ["Spark's own pages", one.spark]);
    const key = JSON.stringify(said);
    if (key !== this.key) this.facts.replaceChildren(facts(said));
    this.key = key;
    this.table.update(one.by_table ?? []);
    this.draw(one.plots ?? [], now / 1e6);
  }

  /** Charts of what its process hands over: they are made anew when their lines are others. */
  draw(plots, now) {
    const shape = JSON.stringify(plots.map(({ title, lines }) => [title, lines.map(({ name }) => name)]));
    if (shape !== this.shape) {
      this.stop();
      this.shape = shape;
      this.charts = plots.map(({ title, unit, lines }) => new Chart(title, lines.map(({ name }, at) => [at, name]),
        unit === "s" ? (value) => known(value, span) : number));
      this.drawn.replaceChildren(...this.charts.map((chart) => chart.element));
    }
    plots.forEach(({ time, lines }, at) =>
      this.charts[at].update({ time, ...lines.map(({ values }) => values) }, [now - HOUR, now]));
  }

  recolour() { for (const chart of this.charts) chart.recolour(); }
  stop() { for (const chart of this.charts) chart.stop(); }
}
