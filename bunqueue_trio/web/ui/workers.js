// Registered workers.

import { get } from "./api.js";
import { absolute, count, duration, relative } from "./format.js";
import { Pager, Table, badge, el, heading, setBadge, setText } from "./ui.js";

const PAGE = 50;

export class WorkersView {
  title = "Workers";
  section = "workers";
  #workers = [];
  #page = 0;
  #summary = el("p", { class: "subtitle" });

  constructor(app) {
    this.app = app;
    this.pager = new Pager((page) => { this.#page = page; this.#show(); });
    this.table = new Table("Workers", [
      { title: "Worker", width: "auto", text: (worker) => worker.name, title_of: (worker) => worker.id },
      { title: "State", width: "state", make: (worker) => badge(worker.status), change: (node, worker) => setBadge(node, worker.status) },
      { title: "Queues", width: "auto", text: (worker) => worker.queues.join(", ") },
      { title: "Host", width: "name", text: (worker) => `${worker.hostname}, pid ${worker.pid}` },
      { title: "Active", kind: "number", width: "count", text: (worker) => `${count(worker.activeJobs)} / ${count(worker.concurrency)}` },
      { title: "Processed", kind: "number", width: "count", text: (worker) => count(worker.processedJobs) },
      { title: "Failed", kind: "number", width: "count", text: (worker) => count(worker.failedJobs) },
      { title: "Last seen", width: "time", text: (worker) => relative(worker.lastSeen), title_of: (worker) => absolute(worker.lastSeen) },
      { title: "Up", width: "time", text: (worker) => duration(worker.uptime) },
    ], (worker) => worker.id, "No workers are registered. A worker can pull jobs without being registered.");
    this.node = el("div", {}, heading("Workers"), this.#summary, el("div", { class: "tools" }, this.pager.node), this.table.node);
  }

  concerns(event) {
    return event.name.startsWith("worker:");
  }

  async refresh() {
    const { data } = await get("workers");
    this.#workers = data.workers;
    const { total, active, activeJobs } = data.stats;
    setText(this.#summary, total ? `${count(active)} of ${count(total)} were heard of lately; they run ${count(activeJobs)} jobs.` : "");
    this.#show();
  }

  #show() {
    const first = this.#page * PAGE;
    const shown = this.#workers.slice(first, first + PAGE);
    this.table.show(shown);
    this.pager.show(this.#page, PAGE, shown.length, this.#workers.length);
  }
}
