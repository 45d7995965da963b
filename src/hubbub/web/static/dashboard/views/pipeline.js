// What there is for the pipeline to read. It is a process of its own, which the hub does not know.

import { get } from "../api.js";
import { bytes, el, facts, number, panel } from "../show.js";

export class Pipeline {
  constructor() {
    this.facts = el("div");
    this.element = el("div", {}, panel("What the journal has for it", this.facts),
      panel("Its tables", el("p", {}, "The pipeline makes tables of the journal, as Parquet, beside the hub. It says itself how far it is:"),
        el("pre", { class: "payload" }, "hubbub pipeline run --metrics 127.0.0.1:9101   # keeps the tables; its state for Prometheus\n"
          + "hubbub pipeline tables                         # which there are\n"
          + "hubbub pipeline sql \"SELECT * FROM messages\"   # what is in them")));
  }

  async refresh() {
    let said;
    try {
      said = await get("journal");
    } catch (error) {
      if (![403, 404].includes(error.status)) throw error;
      this.facts.replaceChildren(el("p", { class: "dim" }, error.message));
      return;
    }
    const size = said.segments.reduce((all, one) => all + one.bytes, 0);
    this.facts.replaceChildren(facts([
      ["rows", `${number(Number(said.first))} to ${number(Number(said.committed))}`],
      ["segments", `${number(said.segments.length)}, ${bytes(size)}`], ["id", said.id], ["format", said.format],
    ]));
  }
}
