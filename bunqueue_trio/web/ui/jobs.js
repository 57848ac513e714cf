// The jobs of one queue, by state and name, a page at a time.

import { get, segment } from "./api.js";
import { actionsOf, setPaused } from "./actions.js";
import { absolute, count, jobName, relative } from "./format.js";
import { Pager, Table, badge, button, el, heading, keyed, route, setAttribute, setBadge, setText } from "./ui.js";

const PAGE = 50;
const SEARCHED = 1_000; // jobs looked at for a name, per request of whoever looks; the server keeps no index of names
const STATES = [
  ["", "All"], ["waiting", "Waiting"], ["prioritized", "Prioritized"], ["delayed", "Delayed"], ["active", "Active"],
  ["waiting-children", "Waits for others"], ["completed", "Completed"], ["failed", "Failed"], ["paused", "Paused"],
];
const TOO_MANY = "Too many jobs for one reply";

/** Jobs from `offset` on; fewer where their data do not fit into one answer. */
async function list(queue, state, offset, limit) {
  const query = new URLSearchParams({ offset, limit, ...(state && { state }) });
  try {
    return { jobs: (await get(`queues/${segment(queue)}/jobs/list?${query}`)).jobs, asked: limit };
  } catch (error) {
    if (limit === 1 || !error.message.startsWith(TOO_MANY)) throw error;
    return list(queue, state, offset, Math.floor(limit / 4) || 1);
  }
}

export class JobsView {
  section = "queues";
  #queue;
  #state;
  #name;
  #page;
  #counts = {};
  #paused = false;
  #found = null;
  #tabs = el("div", { class: "tabs" });
  #more;
  #search;
  #pause;
  #badge = badge("running");

  constructor(app, [queue], query) {
    this.app = app;
    this.#queue = queue;
    this.#state = query.get("state") ?? "";
    this.#name = query.get("name") ?? "";
    this.#page = Math.max(0, Number.parseInt(query.get("page") ?? "1", 10) - 1 || 0);
    this.title = queue;
    this.pager = new Pager((page) => this.#go({ page: page + 1 }));
    this.table = new Table(`Jobs of ${queue}`, [
      { title: "Job", kind: "id", width: "id", text: (job) => job.id, link: (job) => route("jobs", job.id), title_of: (job) => job.id },
      { title: "Name", width: "auto", text: jobName },
      { title: "State", width: "state-long", make: (job) => badge(job.state), change: (node, job) => setBadge(node, job.state) },
      { title: "Priority", kind: "number", width: "small", text: (job) => count(job.priority) },
      { title: "Attempts", kind: "number", width: "small", text: (job) => `${job.attempts} / ${job.maxAttempts}` },
      { title: "Created", width: "time", text: (job) => relative(job.createdAt), title_of: (job) => absolute(job.createdAt) },
      { title: "Due", width: "time", text: (job) => (job.state === "delayed" ? relative(job.runAt) : ""), title_of: (job) => absolute(job.runAt) },
      { title: "", kind: "act", width: "act-wide", make: () => el("span"), change: (node, job) => this.#offer(node, job) },
    ], (job) => job.id, "No such jobs.");
    this.#search = el("input", { type: "search", value: this.#name, placeholder: "Name of the job", "aria-label": "Jobs of this name" });
    const form = el("form", { class: "search", role: "search", on: {
      submit: (event) => { event.preventDefault(); this.#go({ name: this.#search.value.trim(), page: 1 }); },
    } }, this.#search, el("button", { type: "submit" }, "Find"));
    this.#more = el("p", { class: "note", hidden: true });
    this.#pause = button("Pause", () => this.#toggle());
    this.node = el("div", {},
      el("p", { class: "crumbs" }, el("a", { href: route("queues") }, "Queues"), " / "),
      heading(queue, this.#badge, el("span", { class: "spring" }),
        el("a", { class: "button", href: route("letters", queue) }, "Dead letters"), this.#pause),
      this.#tabs, el("div", { class: "tools" }, form, this.pager.node), this.table.node, this.#more);
  }

  concerns(event) {
    return event.data.queue === this.#queue || (event.name.startsWith("job:") && !event.data.queue);
  }

  async refresh() {
    const path = `queues/${segment(this.#queue)}`;
    const [counts, paused, jobs] = await Promise.all([get(`${path}/counts`), get(`${path}/paused`), this.#jobs()]);
    this.#counts = counts.counts;
    this.#paused = paused.paused;
    setBadge(this.#badge, this.#paused ? "paused" : "running");
    setText(this.#pause, this.#paused ? "Resume" : "Pause");
    keyed(this.#tabs, STATES.filter(([state]) => state !== "paused" || this.#paused || state === this.#state),
      ([state]) => state, ([, word]) => el("a", {}, word, el("span", { class: "figure" })), (node, [state]) => this.#tab(node, state));
    if (jobs) this.table.show(jobs, this.#name ? "None of the jobs that were looked at has this name." : undefined);
    this.#showPager(jobs);
  }

  #tab(node, state) {
    setAttribute(node, "href", route("queues", this.#queue, { state, name: this.#name }));
    setAttribute(node, "aria-current", state === this.#state ? "page" : null);
    setText(node.lastChild, state ? count(this.#counts[state] ?? 0) : count(this.#total("")));
  }

  #total(state) {
    if (state) return this.#counts[state] ?? 0;
    return Object.values(this.#counts).reduce((sum, value) => sum + value, 0);
  }

  #showPager(jobs) {
    if (this.#name) this.pager.node.hidden = true;
    else this.pager.show(this.#page, PAGE, jobs.length, this.#total(this.#state));
  }

  /** A page of the list, or those of a name: null where an earlier search is still what is asked for. */
  async #jobs() {
    if (!this.#name) {
      const { jobs, asked } = await list(this.#queue, this.#state, this.#page * PAGE, PAGE);
      this.#more.hidden = asked === PAGE;
      if (asked !== PAGE) setText(this.#more, `The jobs of this page have so much data that only ${asked} of them are shown.`);
      return jobs;
    }
    if (this.#found) return null;
    this.#found = { jobs: [], next: 0 };
    await this.#lookOn();
    return this.#found.jobs;
  }

  async #lookOn() {
    const found = this.#found;
    const end = found.next + SEARCHED;
    let isOver = false;
    while (!isOver && found.next < end && found.jobs.length < 10 * PAGE) {
      const { jobs, asked } = await list(this.#queue, this.#state, found.next, Math.min(100, end - found.next));
      found.jobs.push(...jobs.filter((job) => jobName(job) === this.#name));
      found.next += jobs.length;
      isOver = jobs.length < asked;
    }
    const text = `${count(found.jobs.length)} of the ${count(found.next)} oldest jobs that were looked at ${found.jobs.length === 1 ? "has" : "have"} this name. `;
    this.#more.replaceChildren(text);
    if (!isOver) this.#more.append(button("Look on", () => this.#continue(), { class: "small" }));
    this.#more.hidden = false;
  }

  async #continue() {
    await this.app.attempt(async () => {
      await this.#lookOn();
      this.table.show(this.#found.jobs);
    });
  }

  #offer(node, job) {
    if (node.shownState === job.state) return;
    node.shownState = job.state;
    const [first] = actionsOf(job);
    node.replaceChildren(...(first ? [button(first[0], async () => { if (await first[1]()) await this.#again(); },
      { class: "small", "aria-label": `${first[0]}: job ${job.id}` })] : []));
  }

  async #again() {
    this.#found = null;
    await this.app.refresh();
  }

  async #toggle() {
    if (await setPaused(this.#queue, !this.#paused)) await this.app.refresh();
  }

  #go(changed) {
    location.hash = route("queues", this.#queue, { state: this.#state, name: this.#name, page: this.#page + 1, ...changed });
  }
}
