// Calls: requests that wait for an answer, and those that got none.

import { get } from "../api.js";
import { Chart, Figures } from "../chart.js";
import { el, facts, ms, number, panel, span } from "../show.js";
import { Pages, Table } from "../table.js";

const FAILURES = ["late reply", "the asker is gone", "an answer of somebody who was not asked", "expired", "backlog full"];

export class Calls {
  constructor(again) {
    this.pages = new Pages({ changed: again, label: "Search by who asked" });
    this.table = new Table({
      label: "Open calls", nothing: "No request waits for an answer.", key: (row) => `${row.process ?? ""} ${row.queue} ${row.number}`, columns: [
        ["Asked by", (row) => row.asker || "(no id)"], ["Protocol", (row) => row.protocol],
        ["Queue", (row) => row.queue || "–"], ["Who has it", (row) => row.handed || "nobody yet"],
        ["Waits for", (row) => span(Math.max(0, Date.now() - row.since / 1000) / 1000), "number"], ["Answer to", (row) => row.answer_to],
      ],
    });
    this.failures = el("div");
    const chart = new Chart("Open calls", [["calls_open", "open"], ["queued", "messages in queues"]], number);
    const took = new Chart("How long they took", [["call_ms_50", "half within"], ["call_ms_99", "99 of 100 within"]], ms);
    this.figures = new Figures([took, chart], get, again);
    this.element = el("div", {}, this.figures.element, el("div", { class: "pair" }, took.element, chart.element),
      panel(["Open", el("span", { class: "dim" }, "those with a number to answer to, and the oldest in the queues")], this.pages.element, this.table.element),
      panel("Failed, since the hub started", this.failures));
  }

  async refresh() {
    const [{ calls, count, processes }, now] = await Promise.all([get("ls/calls", this.pages.asked()), get("status", { limit: 0 })]);
    await this.figures.refresh(now.time);
    this.table.update(calls);
    this.pages.said(calls.length, count, processes);
    const failed = FAILURES.filter((why) => now.dropped[why]).map((why) => [why, number(now.dropped[why])]);
    this.failures.replaceChildren(failed.length ? facts(failed) : el("p", { class: "dim" }, "None."));
  }

  recolour() { this.figures.recolour(); }
  stop() { this.figures.stop(); }
}
