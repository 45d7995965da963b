// Who was refused what, and why.

import { get } from "../api.js";
import { Chart, Figures } from "../chart.js";
import { el, number, panel, when } from "../show.js";
import { Table } from "../table.js";

export class Security {
  constructor(again) {
    this.again = again;
    const soon = () => { clearTimeout(this.soon); this.soon = setTimeout(again, 250); };
    this.user = el("input", { type: "search", placeholder: "Only of this user", "aria-label": "User", oninput: soon });
    this.client = el("input", { type: "search", placeholder: "Only of this client", "aria-label": "Client", oninput: soon });
    this.table = new Table({
      label: "Refusals", nothing: "Nobody was refused anything.", key: (row) => row.key, columns: [
        ["When", (row) => when(row.time)], ["What and why", (row) => row.text, "wide"],
        ["User", (row) => row.user || "–"], ["Client", (row) => row.client || "–"],
      ],
    });
    const chart = new Chart("Refused a second", [["logins_refused", "logins"], ["actions_refused", "actions"]], number);
    this.figures = new Figures([chart], get, again);
    this.element = el("div", {}, this.figures.element, chart.element,
      panel("The last refusals", el("div", { class: "bar" }, this.user, this.client), this.table.element));
  }

  async refresh() {
    const given = { limit: 200 };
    if (this.user.value) given.user = this.user.value;
    if (this.client.value) given.client = this.client.value;
    const { refusals } = await get("refusals", given), times = new Map();
    await this.figures.refresh(Date.now() * 1000);
    this.table.update(refusals.map((one) => {
      const before = times.get(one.time) ?? 0; // several at one time
      times.set(one.time, before + 1);
      return { ...one, key: `${one.time} ${before}` };
    }));
  }

  recolour() { this.figures.recolour(); }
  stop() { this.figures.stop(); }
}
