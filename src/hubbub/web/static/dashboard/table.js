// A table that is renewed in place: a row keeps its element as long as its key is there, so what is
// selected, focused and scrolled stays. Arrow keys go from row to row, Enter chooses one.

import { el, number, say, seen } from "./show.js";

const AT_ONCE = 25; // new rows of one frame: to lay out two hundred is a pause that one feels

/**
 * `columns`: [heading, (row, cell) => text, class]; one that says undefined has filled its cell.
 * `fixed`: the widths of columns that do not follow their words: for many rows that change often.
 * `key(row)`: what makes it the same row; `choose(row)` makes rows selectable.
 */
export class Table {
  constructor({ columns, key, choose, nothing, label, fixed }) {
    this.columns = columns;
    this.key = key;
    this.choose = choose;
    this.chosen = undefined;
    this.rows = new Map();
    this.body = el("tbody", choose ? { onkeydown: (event) => this.pressed(event) } : {});
    this.nothing = el("p", { class: "dim" }, nothing);
    const heads = columns.map(([name, , kind]) => el("th", { class: kind ?? "", scope: "col" }, name));
    fixed?.forEach((width, at) => { heads[at].style.width = width; });
    const head = el("tr", {}, ...heads);
    this.table = el("table", { class: fixed ? "fixed" : "", "aria-label": label }, el("thead", {}, head), this.body);
    this.element = el("div", { class: "scroll", tabIndex: choose ? undefined : 0 }, this.table, this.nothing);
  }

  update(items) {
    cancelAnimationFrame(this.rest);
    const wanted = new Map(items.map((item) => [String(this.key(item)), item]));
    const focused = document.activeElement, inside = this.body.contains(focused);
    for (const [key, row] of this.rows) {
      if (wanted.has(key)) continue;
      row.element.remove();
      this.rows.delete(key);
    }
    let place = this.body.firstChild, added = 0;
    for (const [key, item] of wanted) {
      if (!this.rows.has(key) && ++added > AT_ONCE) {
        this.rest = requestAnimationFrame(() => this.update(items));
        break;
      }
      const row = this.rows.get(key) ?? this.add(key);
      row.item = item;
      this.fill(row);
      if (row.element === place) place = place.nextSibling;
      else this.body.insertBefore(row.element, place);
    }
    if (inside && focused.isConnected) focused.focus({ preventScroll: true }); // it may have moved
    this.nothing.hidden = this.rows.size > 0;
    this.table.hidden = this.rows.size === 0;
    if (this.choose && !this.body.querySelector("[tabindex='0']")) this.enter(this.body.firstChild);
  }

  add(key) {
    const cells = this.columns.map(([, , kind]) => el("td", { class: kind ?? "" }));
    const element = el("tr", {}, ...cells), row = { element, cells, shown: [], item: undefined };
    if (this.choose) {
      element.className = "can";
      element.tabIndex = -1;
      element.setAttribute("aria-selected", String(key === this.chosen));
      element.addEventListener("click", () => this.select(key));
    }
    this.rows.set(key, row);
    return row;
  }

  fill(row) {
    this.columns.forEach(([, text], at) => {
      const shown = text(row.item, row.cells[at]);
      if (shown === undefined) return; // the column fills its cell by itself
      const words = String(shown);
      if (row.shown[at] === words) return;
      row.shown[at] = words;
      say(row.cells[at], words);
      row.cells[at].title = words.length > 24 ? seen(words) : "";
    });
  }

  select(key) {
    this.chosen = key;
    for (const [other, { element }] of this.rows)
      element.setAttribute("aria-selected", String(other === key));
    const row = this.rows.get(key);
    if (!row) return;
    this.enter(row.element);
    this.choose(row.item);
  }

  /** The one row that the tab key stops at. */
  enter(element) {
    this.body.querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
    if (element) element.tabIndex = 0;
  }

  pressed(event) {
    const row = event.target.closest("tr");
    const to = { ArrowDown: row?.nextSibling, ArrowUp: row?.previousSibling }[event.key];
    if (to) {
      this.enter(to);
      to.focus();
    } else if (event.key === "Enter" && event.target === row) row.click();
    else return;
    event.preventDefault();
  }
}

/** Search and pages above a table whose rows the hub cuts: `asked()` says what to ask for. */
export class Pages {
  constructor({ size = 100, changed, label = "Search" }) {
    this.size = size;
    this.offset = 0;
    this.input = el("input", { type: "search", placeholder: label, "aria-label": label, oninput: () => {
      clearTimeout(this.soon);
      this.soon = setTimeout(() => { this.offset = 0; changed(); }, 250);
    } });
    const step = (by) => () => { this.offset = Math.max(0, this.offset + by * this.size); changed(); };
    this.before = el("button", { type: "button", onclick: step(-1) }, "‹ before");
    this.after = el("button", { type: "button", onclick: step(1) }, "after ›");
    this.where = el("span", { class: "dim" });
    this.element = el("div", { class: "bar" }, this.input, this.where,
      el("span", { class: "rest" }, this.before, " ", this.after));
  }

  asked() {
    return { search: this.input.value, limit: this.size, offset: this.offset };
  }

  /** `processes`: how each of several is, whose rows these are. */
  said(shown, count, processes = []) {
    const first = Math.min(this.offset + 1, count), silent = processes.filter((one) => !one.up).map((one) => one.process);
    say(this.where, (count ? `${number(first)} to ${number(this.offset + shown)} of ${number(count)}` : "none")
      + (silent.length ? `; process ${silent.join(", ")} does not answer` : ""));
    this.before.disabled = this.offset === 0;
    this.after.disabled = this.offset + shown >= count;
  }
}
