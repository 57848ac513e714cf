// Dead letters: which queues have any, those of one queue, and bringing back a bounded number of them.

import { get, segment } from "./api.js";
import { replay, replayOldest } from "./actions.js";
import { absolute, count, jobName, relative } from "./format.js";
import { Pager, Table, button, el, heading, keyed, route, setText } from "./ui.js";

const PAGE = 20; // with all their data, of up to 10 MB each; the server ends a page at 8 MB

export class LettersView {
  title = "Dead letters";
  section = "letters";

  constructor(app) {
    this.app = app;
    this.table = new Table("Queues with dead letters", [
      { title: "Queue", width: "auto", text: (queue) => queue.name, link: (queue) => route("letters", queue.name) },
      { title: "Dead letters", kind: "number", width: "wide-count", text: (queue) => count(queue.counts.failed) },
    ], (queue) => queue.name, "No dead letters. Jobs that are out of attempts would be kept here.");
    this.node = el("div", {}, heading("Dead letters"), this.table.node);
  }

  concerns(event) {
    return /^(dlq|queue):|^job:failed/.test(event.name);
  }

  async refresh() {
    const queues = await get("queues/summary");
    this.table.show(queues.filter((queue) => queue.counts.failed > 0));
  }
}

export class QueueLettersView {
  section = "letters";
  #queue;
  #page;
  #total = 0;
  #reasons = el("p", { class: "chips" });
  #replayButton;

  constructor(app, [queue], query) {
    this.app = app;
    this.#queue = queue;
    this.#page = Math.max(0, Number.parseInt(query.get("page") ?? "1", 10) - 1 || 0);
    this.title = `Dead letters of ${queue}`;
    this.pager = new Pager((page) => { location.hash = route("letters", queue, { page: page + 1 }); });
    this.table = new Table(this.title, [
      { title: "Job", kind: "id", width: "id", text: ({ job }) => job.id, link: ({ job }) => route("jobs", job.id), title_of: ({ job }) => job.id },
      { title: "Name", width: "name", text: ({ job }) => jobName(job) },
      { title: "Reason", width: "reason", text: ({ reason }) => reason.replaceAll("_", " ") },
      { title: "Error", width: "auto", text: ({ error }) => error ?? "" },
      { title: "Attempts", kind: "number", width: "small", text: ({ attempts }) => count(attempts.length) },
      { title: "Since", width: "time", text: ({ enteredAt }) => relative(enteredAt), title_of: ({ enteredAt }) => absolute(enteredAt) },
      { title: "", kind: "act", width: "act", make: ({ job }) => button("Retry", () => this.#retry(job), { class: "small", "aria-label": `Retry job ${job.id}` }) },
    ], ({ job }) => job.id, "No dead letters.");
    this.#replayButton = button("Replay…", () => this.#replay(), { class: "primary" });
    this.node = el("div", {},
      el("p", { class: "crumbs" }, el("a", { href: route("letters") }, "Dead letters"), " / "),
      heading(queue, el("span", { class: "spring" }), el("a", { class: "button", href: route("queues", queue) }, "Jobs"), this.#replayButton),
      el("div", { class: "tools" }, this.#reasons, this.pager.node), this.table.node);
  }

  concerns(event) {
    return event.data.queue === this.#queue;
  }

  async refresh() {
    const path = `queues/${segment(this.#queue)}/dlq`;
    const [page, { stats }] = await Promise.all([get(`${path}?limit=${PAGE}&offset=${this.#page * PAGE}`), get(`${path}/stats`)]);
    this.#total = page.total;
    this.#replayButton.disabled = page.total === 0;
    this.table.show(page.entries);
    this.pager.show(this.#page, PAGE, page.entries.length, page.total);
    const reasons = Object.entries(stats.byReason).filter(([, number]) => number > 0);
    keyed(this.#reasons, reasons, ([reason]) => reason, ([reason]) => el("span", { class: "chip" }, el("b"), ` ${reason.replaceAll("_", " ")}`),
      (node, [, number]) => setText(node.firstChild, count(number)));
  }

  async #replay() {
    if (await replayOldest(this.#queue, this.#total)) await this.app.refresh();
  }

  async #retry(job) {
    if (await replay(this.#queue, job)) await this.app.refresh();
  }
}
