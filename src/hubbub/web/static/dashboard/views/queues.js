// Queues: what waits, since when, and who serves.

import { get, named, remove } from "../api.js";
import { bytes, clock, el, facts, number, panel, payload, span, twice } from "../show.js";
import { Pages, Table } from "../table.js";

const reader = (queue) =>
  queue.away === 0 ? `${number(queue.takers)} here` : queue.away < 0 ? "nobody ever came" : `away for ${span(queue.away)}`;

export class Queues {
  constructor(again) {
    this.again = again;
    this.pages = new Pages({ changed: again, label: "Search by name" });
    this.table = new Table({
      label: "Queues", nothing: "No queues. Try: hubbub switch call foo --body hello", key: (row) => JSON.stringify(named(row, "queue")),
      choose: (row) => this.choose(row), columns: [
        ["Queue", (row) => row.queue], ["Waiting", (row) => number(row.messages) + (row.full ? ", full" : ""), "number"],
        ["Oldest", (row) => (row.messages ? span(row.waits) : "–"), "number"],
        ["Bytes", (row) => bytes(row.bytes), "number"], ["Who serves", reader],
        ["Goes with", (row) => row.owner || "–"],
      ],
    });
    this.place = el("div");
    this.delayed = new Delayed(again);
    this.element = el("div", {}, el("div", { class: "two" }, panel("Queues", this.pages.element, this.table.element), this.place),
      this.delayed.element);
  }

  choose(row) {
    this.queue = new Queue(row.queue, named(row, "queue"), () => {
      this.queue = undefined;
      this.place.replaceChildren();
      this.again();
    });
    this.place.replaceChildren(this.queue.element);
    this.queue.refresh();
  }

  async refresh() {
    const { queues, count, processes } = await get("ls/queues", this.pages.asked());
    this.table.update(queues);
    this.pages.said(queues.length, count, processes);
    await this.queue?.refresh();
    await this.delayed.refresh();
  }
}

/** What was published to be published later. */
class Delayed {
  constructor(again) {
    this.again = again;
    this.pages = new Pages({ changed: again, label: "Search by row" });
    this.table = new Table({
      label: "Delayed messages", nothing: "Nothing is delayed. Try: hubbub pub '$delayed/60/demo/hello' -m later", key: (row) => `${row.process ?? ""} ${row.seq}`,
      choose: (row) => this.choose(row), columns: [
        ["Row", (row) => row.seq], ["Due", (row) => clock(row.due)], ["Topic", (row) => row.topic || "–"],
        ["Bytes", (row) => bytes(row.bytes), "number"], ["From", (row) => row.client || "–"],
      ],
    });
    this.place = el("div");
    this.element = panel("Delayed", this.pages.element, this.table.element, this.place);
  }

  choose({ seq, process }) {
    const trouble = el("p", { class: "bad", role: "alert" });
    this.place.replaceChildren(el("div", { class: "bar" }, twice(`Cancel ${seq} …`, () => "Really cancel it? It will not be published", async () => {
      await remove("delayed", process ? { seq, process } : { seq });
      this.place.replaceChildren();
      this.again();
    }, trouble)), trouble);
  }

  async refresh() {
    const { delayed, count, processes } = await get("ls/delayed", this.pages.asked());
    this.table.update(delayed);
    this.pages.said(delayed.length, count, processes);
  }
}

class Queue {
  constructor(shown, name, gone) {
    this.name = name;
    this.facts = el("div");
    this.messages = el("div", { class: "tail", tabIndex: 0, "aria-label": "The oldest messages" });
    this.trouble = el("p", { class: "bad", role: "alert" });
    this.buttons = [
      twice("Purge …", () => `Really purge ${number(this.count ?? 0)}? They are gone then`, async () => {
        await remove("queue/messages", { name });
        await this.refresh();
      }, this.trouble),
      twice("Delete …", () => `Really delete the queue, with ${number(this.count ?? 0)} messages?`, async () => {
        await remove("queue", { name });
        gone();
      }, this.trouble),
    ];
    this.element = el("div", {}, panel(el("span", { class: "mono" }, shown), this.facts, el("div", { class: "bar" }, ...this.buttons), this.trouble),
      panel("The oldest, which stay in it", this.messages));
  }

  async refresh() {
    let said;
    try {
      said = await get("queue", { name: this.name });
    } catch (error) {
      if (![403, 404].includes(error.status)) throw error;
      this.messages.replaceChildren(el("p", { class: "dim" }, error.message));
      return;
    }
    const key = JSON.stringify(said);
    if (key === this.shown) return;
    this.shown = key;
    this.count = said.count;
    const settings = Object.entries(said.settings).filter(([, value]) => value).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`);
    this.facts.replaceChildren(facts([
      ["waiting", `${number(said.count)}, ${bytes(said.bytes)}`], ["being worked on", number(said.leased)],
      ["next id", said.next], ["consumers", said.serving.join(", ") || "none"], ["takers", number(said.takers)],
      ["bound to", said.bindings.join(", ") || "nothing"], ["settings", settings.join(", ") || "as the hub's"],
    ]));
    this.messages.replaceChildren(...said.messages.map((one) => el("article", {}, payload(one), el("p", { class: "dim" },
      [`number ${one.number}`, one.leased ? "is worked on" : "waits", clock(one.time), bytes(one.size), one.client && `from ${one.client}`,
        one.reply_to && `answer to ${one.reply_to}`].filter(Boolean).join(" · ")))));
    if (!said.messages.length) this.messages.replaceChildren(el("p", { class: "dim" }, "It is empty."));
  }
}
