// Crons, each with its next runs.

import { get } from "./api.js";
import { absolute, brief, count, duration, relative } from "./format.js";
import { Pager, Table, el, heading, keyed, route, setAttribute, setText } from "./ui.js";

const PAGE = 50;
const RUNS = 5;

const schedule = (cron) => (cron.schedule ? cron.schedule + (cron.timezone ? ` ${cron.timezone}` : "") : `every ${duration(cron.repeatEvery)}`);

export class CronsView {
  title = "Crons";
  section = "crons";
  #page = 0;

  constructor(app) {
    this.app = app;
    this.pager = new Pager((page) => { this.#page = page; this.app.refresh(); });
    this.table = new Table("Crons", [
      { title: "Cron", width: "auto", text: (cron) => cron.name },
      { title: "Queue", width: "auto", text: (cron) => cron.queue, link: (cron) => route("queues", cron.queue) },
      { title: "Schedule", width: "reason", text: schedule },
      { title: "Runs", kind: "number", width: "count", text: (cron) => count(cron.executions) + (cron.maxLimit ? ` / ${count(cron.maxLimit)}` : "") },
      { title: "Next five runs", width: "runs", make: () => el("ol", { class: "runs" }), change: (node, cron) => this.#runs(node, cron) },
    ], (cron) => cron.name, "No crons.");
    this.node = el("div", {}, heading("Crons"), el("div", { class: "tools" }, this.pager.node), this.table.node);
  }

  concerns(event) {
    return event.name.startsWith("cron:");
  }

  async refresh() {
    const page = await get(`dashboard/crons?runs=${RUNS}&limit=${PAGE}&offset=${this.#page * PAGE}`);
    this.table.show(page.crons);
    this.pager.show(this.#page, PAGE, page.crons.length, page.total);
  }

  #runs(node, cron) {
    if (cron.nextRuns.length === 0) cron.nextRuns = [null];
    keyed(node, cron.nextRuns.map((at, index) => ({ at, index })), ({ index }) => index, () => el("li", {}, el("time")), (item, { at, index }) => {
      setText(item.firstChild, at === null ? "none" : index === 0 ? relative(at) : brief(at));
      setAttribute(item.firstChild, "title", at === null ? null : absolute(at));
    });
  }
}
