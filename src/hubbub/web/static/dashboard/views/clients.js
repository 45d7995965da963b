// Who is here, who is away, and who went and why.

import { get, named, remove } from "../api.js";
import { bytes, clock, el, facts, number, panel, span, twice, when } from "../show.js";
import { Pages, Table } from "../table.js";

const shown = (row) => row.client || "(no id)";
const who = (row) => JSON.stringify([row.protocol, named(row, "client")]);
const ago = (time, now) => (time ? span(Math.max(0, now - time) / 1e6) : "–");
const KINDS = {
  clients: ["Connected", "Nobody is connected. Try: hubbub sub 'demo/#'", (now) => [
    ["Client", shown], ["User", (row) => row.user], ["Protocol", (row) => row.protocol],
    ["Address", (row) => row.address], ["Here for", (row) => ago(row.since, now())],
    ["Subscriptions", (row) => number(row.subscriptions), "number"],
    ["In flight", (row) => number(row.in_flight), "number"],
    ["Backlog", (row) => number(row.waiting), "number"],
    ["Lost", (row) => number(row.dropped), "number"],
  ]],
  away: ["Away", "No session is away.", (now) => [
    ["Client", shown], ["User", (row) => row.user], ["Protocol", (row) => row.protocol],
    ["Subscriptions", (row) => number(row.subscriptions), "number"],
    ["Backlog", (row) => number(row.waiting), "number"],
    ["Bytes", (row) => bytes(row.waiting_bytes), "number"],
    ["Ends", (row) => (row.expires ? `in ${span(Math.max(0, row.expires - now()) / 1e6)}` : "never")],
  ]],
  subscriptions: ["Subscriptions", "Nobody is subscribed to anything.", () => [
    ["Filter", (row) => row.filter], ["Client", shown], ["Protocol", (row) => row.protocol],
    ["QoS", (row) => row.qos, "number"], ["The client is", (row) => (row.connected ? "here" : "away")],
  ]],
  gone: ["Why did it go?", "Nobody has left yet.", () => [
    ["Client", shown], ["Why", (row) => row.reason || "it left in order", "wide"],
    ["When", (row) => when(row.time)], ["User", (row) => row.user],
    ["Protocol", (row) => row.protocol], ["Address", (row) => row.address],
    ["Was here for", (row) => ago(row.since, row.time)],
  ]],
};

export class Clients {
  constructor(again) {
    this.again = again;
    this.tabs = Object.entries(KINDS).map(([kind, [title]]) => el("button", {
      type: "button", onclick: () => { this.open(kind); again(); },
    }, title));
    this.detail = el("div");
    this.place = el("div");
    this.element = el("div", {}, el("div", { class: "bar", role: "group", "aria-label": "Which" }, ...this.tabs),
      panel("", this.place), this.detail);
    this.open("clients");
  }

  open(kind) {
    const [title, nothing, columns] = KINDS[kind];
    this.kind = kind;
    this.tabs.forEach((tab, at) => tab.setAttribute("aria-pressed", String(Object.keys(KINDS)[at] === kind)));
    this.table = new Table({
      columns: columns(() => this.now), nothing, label: title, choose: (row) => this.choose(row),
      key: (row) => who(row) + (kind === "gone" ? row.time : JSON.stringify(named(row, "filter") ?? "")),
    });
    this.pages = new Pages({ changed: this.again, label: `Search by ${kind === "subscriptions" ? "filter" : "client id"}` });
    this.place.replaceChildren(this.pages.element, this.table.element);
    this.detail.replaceChildren();
    this.who = undefined;
  }

  choose(row) {
    const stamps = ["since", "expires", "time", "left"];
    const words = (name, value) => {
      if (stamps.includes(name)) return clock(value);
      if (name === "waiting_bytes") return bytes(value);
      return { true: "yes", false: "no", "": "–" }[value] ?? value;
    };
    if (who(row) !== this.who) {
      this.who = who(row);
      this.facts = el("div");
      this.detail.replaceChildren(panel(shown(row), this.facts, this.endings(row)));
    }
    this.facts.replaceChildren(facts(Object.entries(row).filter(([name]) => name !== "exact").map(([name, value]) => [
      name.replaceAll("_", " "), words(name, value),
    ])));
  }

  /** Its connection, after which it may come again; its session, if that lasts, and what waits there. */
  endings(row) {
    if (!["clients", "away"].includes(this.kind)) return undefined;
    const trouble = el("p", { class: "bad", role: "alert" });
    const button = (label, really, path) => twice(label, () => really, async () => {
      await remove(path, { protocol: row.protocol, client: named(row, "client") });
      this.detail.replaceChildren();
      this.who = undefined;
      this.again();
    }, trouble);
    return el("div", {}, el("div", { class: "bar" },
      row.connected ? button("End …", "Really end its connection? It may come again", "clients") : undefined,
      row.lasting ? button("End session …", "Really end its session, with all that waits for it?", "sessions") : undefined), trouble);
  }

  async refresh() {
    const { kind, table, pages } = this, found = await get(`ls/${kind}`, pages.asked());
    if (table !== this.table) return;
    this.now = Date.now() * 1000;
    table.update(found[kind]);
    pages.said(found[kind].length, found.count, found.processes);
    const chosen = table.rows.get(table.chosen);
    if (chosen) this.choose(chosen.item);
  }
}
