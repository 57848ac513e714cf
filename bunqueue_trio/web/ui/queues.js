// All queues: totals, throughput, and a line for each.

import { get } from "./api.js";
import { Backups } from "./backups.js";
import { setPaused } from "./actions.js";
import { Chart } from "./chart.js";
import { count } from "./format.js";
import { Pager, Table, announce, badge, button, el, heading, panel, route, setAttribute, setBadge, setText } from "./ui.js";

const PAGE = 50;
const LISTED = 1_000; // what the server tells of at once
const ANNOUNCED = 3;

const TILES = [
  ["waiting", "Waiting", (stats) => stats.waiting + stats.prioritized], ["active", "Active"], ["delayed", "Delayed"],
  ["waiting-children", "Waits for others"], ["completed", "Completed"], ["failed", "Dead letters", (stats) => stats.dlq],
];

const figure = (title, name) => ({
  title, kind: "number", width: "count", text: (queue) => count(queue.counts[name]),
  link: (queue) => route("queues", queue.name, { state: name }),
});

export class QueuesView {
  title = "Queues";
  section = "queues";
  #backups = new Backups();
  #queues = [];
  #page = 0;
  #filter = "";
  #frame = 0;
  #cut = el("p", { class: "note", hidden: true }, `Only the first ${count(LISTED)} queues are listed.`);
  #chart = new Chart();
  #tiles = new Map();

  constructor(app) {
    this.app = app;
    this.pager = new Pager((page) => { this.#page = page; this.#show(); });
    this.table = new Table("Queues", [
      { title: "Queue", width: "auto", text: (queue) => queue.name, link: (queue) => route("queues", queue.name) },
      { title: "State", width: "state", make: (queue) => badge(stateOf(queue)), change: (node, queue) => setBadge(node, stateOf(queue)) },
      figure("Waiting", "waiting"), figure("Prioritized", "prioritized"), figure("Active", "active"),
      figure("Delayed", "delayed"), figure("Completed", "completed"),
      { ...figure("Dead", "failed"), link: (queue) => route("letters", queue.name) },
      {
        title: "", kind: "act", width: "act",
        make: (queue) => button("", () => this.#toggle(queue.name), { class: "small" }),
        change: (node, queue) => {
          setText(node, queue.paused ? "Resume" : "Pause");
          setAttribute(node, "aria-label", `${queue.paused ? "Resume" : "Pause"} ${queue.name}`);
        },
      },
    ], (queue) => queue.name, "No queues yet. The first job that is pushed makes one.");
    const filter = el("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter queues by name", on: {
      input: () => { this.#filter = filter.value.trim().toLowerCase(); this.#page = 0; this.#show(); },
    } });
    const tiles = TILES.map(([name, word, value]) => {
      const node = el("strong", {}, "–");
      this.#tiles.set(node, value ?? ((stats) => stats[name]));
      return el("div", { class: "tile", "data-state": name }, el("span", {}, word), node);
    });
    this.node = el("div", {},
      heading("Queues"), el("div", { class: "tiles" }, ...tiles), panel("Throughput", this.#chart.node),
      el("div", { class: "tools" }, filter, this.pager.node), this.table.node, this.#cut, this.#backups.node);
  }

  concerns(event) {
    return /^(queue|job|dlq|batch|cleanup|storage):/.test(event.name) && event.name !== "queue:counts";
  }

  async refresh() {
    const former = new Map(this.#queues.map((queue) => [queue.name, queue]));
    [this.#queues] = await Promise.all([get(`queues/summary?limit=${LISTED}`), this.#backups.refresh()]);
    this.#cut.hidden = this.#queues.length < LISTED;
    this.#show();
    const news = this.#queues.flatMap((queue) => changesOf(former.get(queue.name), queue));
    if (news.length) announce(news.slice(0, ANNOUNCED).join(". "));
  }

  /** Counts that came by themselves. */
  take(event) {
    if (event.name !== "queue:counts") return;
    const queue = this.#queues.find(({ name }) => name === event.data.queue);
    if (!queue) return;
    for (const name of Object.keys(queue.counts)) {
      if (Number.isFinite(event.data[name])) queue.counts[name] = event.data[name];
    }
    // A busy queue sends a hundred a second: once per frame is enough.
    this.#frame ||= requestAnimationFrame(() => { this.#frame = 0; this.#show(); });
  }

  showStats(stats) {
    for (const [node, value] of this.#tiles) setText(node, count(value(stats) ?? 0));
    this.#chart.show();
  }

  themeChanged() {
    this.#chart.redraw();
  }

  close() {
    this.#chart.close();
  }

  #show() {
    const found = this.#queues.filter(({ name }) => name.toLowerCase().includes(this.#filter));
    const first = this.#page * PAGE;
    const shown = found.slice(first, first + PAGE);
    this.table.show(shown, this.#filter ? "No queue has such a name." : undefined);
    this.pager.show(this.#page, PAGE, shown.length, found.length);
  }

  async #toggle(name) {
    const queue = this.#queues.find((one) => one.name === name);
    if (queue && await setPaused(name, !queue.paused)) await this.app.refresh();
  }
}

/** What is worth saying aloud: not each count. */
function changesOf(before, after) {
  if (!before) return [];
  const news = [];
  if (before.paused !== after.paused) news.push(`${after.name} is ${stateOf(after)}`);
  const dead = after.counts.failed;
  if (dead > before.counts.failed) news.push(`${after.name} has ${count(dead)} dead ${dead === 1 ? "letter" : "letters"}`);
  return news;
}

const stateOf = (queue) => (queue.paused ? "paused" : "running");
