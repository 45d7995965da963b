// Topics as a tree with rates, which the hub samples; one of them as it is, live, and to publish to.

import { get, history, named, publish, remove, spelled, tail } from "../api.js";
import { bytes, clock, el, number, panel, payload, rate, say, seen, twice } from "../show.js";
import { Table } from "../table.js";

const LEVEL = 100; // of one level, the busiest: more nobody reads, and the search finds them
const KEPT = 100; // messages of the tail
const LAST = 20; // of what was published before

export class Topics {
  constructor(again) {
    this.again = again;
    this.open = new Set();
    this.search = el("input", { type: "search", placeholder: "Search all topics", "aria-label": "Search all topics",
      oninput: () => { clearTimeout(this.soon); this.soon = setTimeout(again, 250); } });
    this.about = el("span", { class: "dim" });
    this.table = new Table({
      fixed: ["32%", "13%", "14%", "11%", "14%", "16%"], label: "Topics", nothing: "No topic yet. Try: hubbub pub demo/hello -m hello", key: (row) => `${row.found} ${row.where}`,
      choose: (row) => this.choose(row), columns: [
        ["Topic", (row, cell) => this.name(row, cell)],
        ["Rate", (row) => rate(row.rate), "number"],
        ["Messages", (row) => number(row.messages), "number"],
        ["Topics", (row) => number(row.topics), "number"],
        ["Retained", (row) => (row.retained ? number(row.retained) : ""), "number"],
        ["Last", (row) => (row.time ? clock(row.time, false) : "–")],
      ],
    });
    this.place = el("div");
    this.publish = new Publish();
    this.element = el("div", { class: "two" },
      panel(["Topics", this.about], el("div", { class: "bar" }, this.search), this.table.element),
      el("div", {}, this.place, this.publish.element));
  }

  /** Its place in the tree, a mark to unfold it, and its name; made once for each row. */
  name(row, cell) {
    if (!cell.firstChild) {
      const deep = el("span", { class: "deep" });
      deep.style.setProperty("--depth", row.depth);
      const mark = el("button", { type: "button", class: "fold", tabIndex: -1, onclick: (event) => {
        event.stopPropagation();
        this.fold(row.where);
      } });
      cell.append(deep, mark, el("span", {}, row.name === "" ? "(empty)" : row.name));
      cell.title = seen(row.path);
      cell.parentNode.addEventListener("keydown", ({ key }) => {
        const wanted = { ArrowRight: true, ArrowLeft: false }[key];
        if (wanted !== undefined && this.open.has(row.where) !== wanted) this.fold(row.where);
      });
    }
    const mark = cell.children[1], unfolds = !row.found && row.topics > (row.own ? 1 : 0);
    say(mark, unfolds ? (this.open.has(row.where) ? "▾" : "▸") : "");
    if (unfolds) mark.setAttribute("aria-label", this.open.has(row.where) ? "fold" : "unfold");
    mark.disabled = !unfolds;
    return undefined;
  }

  fold(where) {
    if (!this.open.delete(where)) this.open.add(where);
    this.again();
  }

  /** What is below a prefix: `where` as a query says it, `path` as it is shown. */
  async level(where, path, depth) {
    const search = this.search.value, given = { under: { exact: where }, limit: LEVEL };
    if (search) given.search = search;
    const found = await get("traffic", given);
    if (!depth) this.told(found);
    found.levels.sort((one, other) => (one.name < other.name ? -1 : 1));
    const rows = [];
    for (const row of found.levels) {
      const here = where + spelled(named(row, "name"));
      rows.push({ ...row, depth, path: path + row.name, where: here, found: search !== "" });
      if (!search && this.open.has(here)) rows.push(...await this.level(`${here}%2F`, `${path}${row.name}/`, depth + 1));
    }
    return rows;
  }

  told({ topics, part: seen, count, levels }) {
    const part = count > levels.length ? `; the busiest ${levels.length} of ${number(count)}` : "";
    say(this.about, `${number(topics)} topics of late, ${seen < 1 ? `${number(100 * seen)} % of the messages are looked at` : "every message is counted"}${part}`);
  }

  choose({ path, where }) {
    this.topic?.stop();
    this.topic = new Topic(path, { exact: where });
    this.publish.topic(where);
    this.place.replaceChildren(this.topic.element);
    this.topic.refresh();
  }

  async refresh() {
    this.table.update(await this.level("", "", 0));
    await this.topic?.refresh();
  }

  stop() { this.topic?.stop(); }
}

/** One topic: what is retained there, and what comes now. */
class Topic {
  constructor(shown, name) {
    this.name = name;
    this.kept = el("div", {}, el("p", { class: "dim" }, "asking …"));
    this.trouble = el("p", { class: "bad", role: "alert" });
    this.state = el("span", { class: "dim" });
    this.button = el("button", { type: "button", onclick: () => (this.source ? this.end() : this.begin()) }, "Watch live");
    this.messages = el("div", { class: "tail", tabIndex: 0, role: "log", "aria-label": "Messages" });
    this.past = el("button", { type: "button", onclick: () => this.recall() }, `Show the last ${LAST}`);
    this.reaches = el("span", { class: "dim" });
    this.before = el("div", { class: "tail", tabIndex: 0, "aria-label": "What was published before" });
    this.element = el("div", {},
      panel(el("span", { class: "mono" }, shown), el("h3", { class: "dim" }, "Retained"), this.kept, this.trouble),
      panel(["Live", this.button, this.state], this.messages),
      panel(["Before", this.past, this.reaches], this.before));
  }

  /** Asked when somebody wants it: it is read from the disk. */
  async recall() {
    this.past.disabled = true;
    try {
      const { messages, complete, reaches } = await history(this.name, LAST);
      this.before.replaceChildren(...messages.map((one) => {
        const text = one.payload, size = text === undefined ? atob(one.base64).length : new Blob([text]).size;
        const shown = { ...one, size, text: text?.slice(0, 16384), qos: one.qos ?? 0, time: Date.parse(one.time) * 1000 };
        return el("article", {}, payload(shown), about({ ...shown, expires: 0 }));
      }));
      say(this.reaches, messages.length ? (complete ? "" : `it was looked back to ${reaches}`) : "nothing");
    } catch (error) {
      say(this.reaches, error.message);
    } finally {
      this.past.disabled = false;
    }
  }

  async refresh() {
    let said;
    try {
      said = await get("retained", { topic: this.name });
    } catch (error) {
      if (![403, 404].includes(error.status)) throw error;
      said = { refused: error.message };
    }
    const key = JSON.stringify(said);
    if (key === this.shown) return;
    this.shown = key;
    this.kept.replaceChildren(...(said.refused ? [el("p", { class: "dim" }, said.refused)] : [payload(said), about(said), this.clear()]));
  }

  /** As a publisher does it: who is subscribed gets an empty message. */
  clear() {
    return el("div", { class: "bar" }, twice("Clear …", () => "Really clear it? Nothing is retained here then", async () => {
      await remove("retained", { topic: this.name });
      await this.refresh();
    }, this.trouble));
  }

  begin() {
    say(this.button, "Stop");
    say(this.state, "connecting …");
    this.source = tail(this.name, (data) => this.heard(data), (text) => say(this.state, text));
  }

  heard({ messages, left_out }) {
    const made = messages.slice(-KEPT).map((one) => el("article", {}, payload(one), about(one)));
    if (left_out) made.push(el("p", { class: "warn" }, `${number(left_out)} more came, too fast to be shown`));
    this.messages.prepend(...made.reverse());
    while (this.messages.childElementCount > KEPT) this.messages.lastChild.remove();
  }

  end() {
    this.source?.close();
    this.source = undefined;
    say(this.button, "Watch live");
    say(this.state, "");
  }

  stop() { this.end(); }
}

function about(message) {
  const parts = [clock(message.time), `QoS ${message.qos}`, bytes(message.size)];
  if (message.client) parts.push(`from ${message.client}`);
  if (message.content_type) parts.push(message.content_type);
  if (message.expires) parts.push(`until ${clock(message.expires)}`);
  return el("p", { class: "dim" }, parts.join(" · "));
}

class Publish {
  constructor() {
    this.name = el("input", { required: true, class: "mono" });
    this.text = el("textarea", { rows: 4, class: "mono" });
    this.qos = el("select", {}, ...["0", "1", "2"].map((one) => el("option", {}, one)));
    this.retain = el("input", { type: "checkbox" });
    this.done = el("p", { role: "status" });
    this.element = panel("Publish", el("form", { class: "form", onsubmit: (event) => this.send(event) },
      el("label", {}, "Topic", this.name), el("label", {}, "Payload", this.text),
      el("div", { class: "row" }, el("label", {}, "QoS", this.qos), el("label", { class: "check" }, this.retain, "Retain"),
        el("button", { class: "first" }, "Publish")), this.done));
  }

  /** `where`: as a query says it. JSON cannot say a name that is no text, so that is not published to here. */
  topic(where) {
    this.name.value = "";
    say(this.done, "");
    try {
      this.name.value = decodeURIComponent(where);
    } catch {
      this.done.className = "bad";
      say(this.done, "The topic chosen is no text: JSON cannot say it. Publish to it over SMQ.");
    }
  }

  async send(event) {
    event.preventDefault();
    try {
      await publish({ topic: this.name.value, payload: this.text.value, qos: Number(this.qos.value), retain: this.retain.checked });
      this.done.className = "good";
      say(this.done, `Published at ${clock(Date.now() * 1000, false)}`);
    } catch (error) {
      this.done.className = "bad";
      say(this.done, error.message);
    }
  }
}
