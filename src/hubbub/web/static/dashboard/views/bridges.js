// Bridges to other brokers.

import { get } from "../api.js";
import { el, number, panel } from "../show.js";
import { Pages, Table } from "../table.js";

export class Bridges {
  constructor(again) {
    this.pages = new Pages({ changed: again, label: "Search by name" });
    this.table = new Table({
      label: "Bridges", nothing: "No bridge is set up: see [[bridge]] in hubbub.toml.", key: (row) => row.bridge, columns: [
        ["Bridge", (row) => row.bridge], ["State", (row) => (row.up ? "up" : "down")],
        ["Waiting", (row) => number(row.waiting), "number"],
      ],
    });
    this.element = el("div", {}, panel("Bridges", this.pages.element, this.table.element));
  }

  async refresh() {
    const { bridges, count } = await get("ls/bridges", this.pages.asked());
    this.table.update(bridges);
    this.pages.said(bridges.length, count);
  }
}
