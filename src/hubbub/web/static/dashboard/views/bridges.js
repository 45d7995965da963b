// Bridges to other brokers, and the other nodes of the cluster where there is one.

import { get } from "../api.js";
import { clock, el, number, panel, say } from "../show.js";
import { Pages, Table } from "../table.js";

export class Bridges {
  constructor(again) {
    this.pages = new Pages({ changed: again, label: "Search by name" });
    this.table = new Table({
      label: "Bridges", nothing: "No bridge is set up: see [[bridge]] in hubbub.toml.", key: (row) => row.bridge, columns: [
        ["Bridge", (row) => row.bridge], ["State", (row) => (row.up ? "up" : row.cut_off ? "cut off by hand" : "down")],
        ["Waiting", (row) => number(row.waiting), "number"],
      ],
    });
    this.nodes = new Table({
      label: "Nodes", nothing: "No other node is there.", key: (row) => row.name, columns: [
        ["Node", (row) => row.name], ["State", state],
        ["Clients", (row) => number(row.clients), "number"], ["Filters", (row) => number(row.filters), "number"],
        ["Waiting", (row) => number(row.waiting), "number"], ["Version", (row) => row.version ?? ""],
      ],
    });
    this.state = el("p", { class: "dim" });
    this.copies = el("p", { class: "dim" });
    this.cluster = panel("Nodes of the cluster", this.state, this.copies, this.nodes.element);
    this.cluster.hidden = true;
    this.element = el("div", {}, panel("Bridges", this.pages.element, this.table.element), this.cluster);
  }

  async refresh() {
    const [{ bridges, count, processes }, { cluster }] = await Promise.all([
      get("ls/bridges", this.pages.asked()), get("status", { limit: 1 }),
    ]);
    this.cluster.hidden = !cluster;
    if (cluster) {
      say(this.state, `This node is ${cluster.name}, ${cluster.up ? "up" : `alone: ${cluster.trouble}`}. ${number(cluster.kept)} messages wait for others.`);
      say(this.copies, copied(cluster.copies));
      this.nodes.update([...cluster.nodes, ...cluster.away]);
    }
    this.table.update(bridges);
    this.pages.said(bridges.length, count, processes);
  }
}

/** Whether a node is there; of one that is not since when, and who has what it had. */
function state(row) {
  if (row.up) return "up";
  const since = row.since ? ` since ${clock(row.since)}` : "";
  return `away${since}${row.heir ? `; ${row.heir} has what it had` : ""}`;
}

/** Where its log is beside its own disk, and what that is good for. */
export function copied(copies) {
  if (copies?.mode !== "copied") return copies?.trouble ? `No copies of its log: ${copies.trouble}.` : "";
  const survives = { yes: "survive", no: "do not survive" }[copies.survives_power_loss];
  const power = `a loss of power of all of them ${copies.power_loss ? `(${copies.power_loss})` : ""}`;
  const said = survives ? `They ${survives} ${power}.` : `Whether they survive ${power} is not known.`;
  return `Copies of its log are on ${number(copies.servers)} servers of NATS. ${said}`;
}
