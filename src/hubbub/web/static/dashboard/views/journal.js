// The journal: how it does, what waits for the disk, how much disk is left.

import { get } from "../api.js";
import { Chart, Figures } from "../chart.js";
import { bytes, el, facts, ms, number, panel } from "../show.js";

export class Journal {
  constructor(again) {
    this.facts = el("div");
    const charts = [
      new Chart("Commits", [["commit_ms_50", "half"], ["commit_ms_99", "99 %"]], ms),
      new Chart("Rows a second", [["rows_written", "written"]], number),
      new Chart("Written", [["bytes_written", "a second"], ["waiting_bytes", "waits for the disk"]], bytes),
      new Chart("Disk left", [["disk_free", "free"]], bytes),
    ];
    this.figures = new Figures(charts, get, again);
    this.element = el("div", {}, panel("Now", this.facts), this.figures.element,
      el("div", { class: "pair" }, ...charts.map((chart) => chart.element)));
  }

  async refresh() {
    const now = await get("status", { limit: 0 }), { journal, limits } = now;
    await this.figures.refresh(now.time);
    if (!journal.directory) {
      this.facts.replaceChildren(el("p", {}, "Nothing is kept on the disk: see journal.record and durability."));
      return;
    }
    this.facts.replaceChildren(facts([
      ["directory", journal.directory], ["recorded", journal.record],
      ["trouble", el("span", { class: journal.trouble ? "bad" : "good" }, journal.trouble || "none")],
      ["rows", `${number(Number(journal.position))}, ${number(Number(journal.position) - Number(journal.committed))} not yet safe`],
      ["size", bytes(journal.bytes)], ["disk", limits.disk_bytes ? `${bytes(limits.disk_free)} of ${bytes(limits.disk_bytes)} left` : "–"],
      ["refused", limits.not_taken || "nothing"],
      ["commit", `${ms(journal.commit_ms_50)}, 99 % within ${ms(journal.commit_ms_99)}`],
      ["sync of the disk", `${ms(journal.sync_ms_50)}, 99 % within ${ms(journal.sync_ms_99)}, ${number(journal.syncs_per_second)} a second at most`],
      ["group", `${number(journal.group_rows)} rows`],
      ["folds", `${number(journal.folds)}, ${number(journal.folds_failed)} failed, ${number(journal.fold_seconds)} s in all`],
      ["publishers waited", `${number(journal.slowed)} times`],
    ]));
  }

  recolour() { this.figures.recolour(); }
  stop() { this.figures.stop(); }
}
