// One job: what became of it, why it does not run, its data, result and logs.

import { get, segment } from "./api.js";
import { actionsOf } from "./actions.js";
import { absolute, count, duration, jobName, json, relative } from "./format.js";
import { announce, badge, button, el, heading, keyed, panel, route, setAttribute, setBadge, setText } from "./ui.js";

const link = (text, ...parts) => el("a", { href: route(...parts) }, text);
const time = (ms) => el("time", { datetime: new Date(ms).toISOString(), title: absolute(ms) }, relative(ms));

/** What the server's reasons mean. A sentence, with links. */
const REASONS = {
  commit: () => ["A change of it is being written to the file."],
  paused: ({ queue }) => ["Its queue ", link(queue, "queues", queue), " is paused."],
  delayed: ({ until }) => ["It is not due yet: ", time(until), "."],
  expired: ({ since }) => ["Its time to live was over ", time(since), "; the next pull deletes it."],
  dependencies: ({ total, dependencies }) => [
    `It waits for ${count(total)} other ${total === 1 ? "job" : "jobs"}: `,
    ...dependencies.flatMap(({ id, state }, index) => [index ? ", " : "", link(id, "jobs", id), ` (${state})`]),
    dependencies.length < total ? ", …" : ".",
  ],
  group: ({ groupId, active }) => [`Its group ${groupId} is busy with `, link(active, "jobs", active), "."],
  concurrency: ({ limit, active }) => [`The queue runs ${count(active)} jobs and may run ${count(limit)} at once.`],
  "rate-limit": ({ limit, until }) => until === null
    ? [`The queue's rate limit is ${count(limit)}: nothing is handed out.`]
    : [`The queue's rate limit of ${count(limit)} is used up; the next is due `, time(until), "."],
  "jobs-ahead": ({ count: ahead, atLeast }) => [`${atLeast ? "At least " : ""}${count(ahead)} ${ahead === 1 ? "job leaves" : "jobs leave"} before it.`],
  "no-worker": ({ queue }) => ["No worker asks for jobs of ", link(queue, "queues", queue), "."],
  stopping: () => ["The server is stopping and hands out no more jobs."],
  ready: () => ["Nothing holds it: the next pull gets it."],
  leased: ({ owner, until, heartbeatAge }) => [
    owner ? `It runs, at ${owner}` : "It runs", `; last sign of life ${duration(heartbeatAge)} ago`,
    ...(until === null ? [] : ["; its lock ends ", time(until)]), ".",
  ],
  failed: ({ cause, error, since }) => ["It failed for good ", time(since), ` (${cause.replaceAll("_", " ")})${error ? `: ${error}` : ""}`],
  completed: ({ since }) => ["It completed ", time(since), "."],
};

const HOLDS = new Set(["waiting", "prioritized", "delayed", "waiting-children", "paused", "unknown"]);

/** Facts that are worth a line, with how they are shown. */
const FACTS = [
  ["Queue", (job) => link(job.queue, "queues", job.queue)],
  ["Priority", (job) => count(job.priority) + (job.lifo ? ", last in first out" : "")],
  ["Attempts", (job) => `${job.attempts} of ${job.maxAttempts}`],
  ["Stalls", (job) => job.stallCount || null],
  ["Created", (job) => time(job.createdAt)],
  ["Due", (job) => (job.runAt > job.createdAt ? time(job.runAt) : null)],
  ["Started", (job) => job.startedAt && time(job.startedAt)],
  ["Completed", (job) => job.completedAt && time(job.completedAt)],
  ["Took", (job) => (job.completedAt && job.startedAt ? duration(job.completedAt - job.startedAt) : null)],
  ["Backoff", (job) => (job.backoffConfig ? `${job.backoffConfig.type}, ${duration(job.backoffConfig.delay)}` : duration(job.backoff))],
  ["Timeout", (job) => job.timeout && duration(job.timeout)],
  ["Time to live", (job) => job.ttl && duration(job.ttl)],
  ["Unique key", (job) => job.uniqueKey], ["Custom id", (job) => job.customId], ["Group", (job) => job.groupId],
  ["Tags", (job) => job.tags?.join(", ")],
  ["Parent", (job) => job.parentId && link(job.parentId, "jobs", job.parentId)],
  ["Depends on", (job) => links(job.dependsOn)],
  ["Children", (job) => links(job.childrenIds)],
];
const LINKS_MAX = 20;

function links(ids) {
  if (!ids?.length) return null;
  const shown = ids.slice(0, LINKS_MAX).map((id) => el("li", {}, link(id, "jobs", id)));
  if (ids.length > LINKS_MAX) shown.push(el("li", {}, `and ${count(ids.length - LINKS_MAX)} more`));
  return el("ul", { class: "plain" }, ...shown);
}

/** Whether something changed that is shown; spares selections of text and the reading position. */
function isNew(node, value) {
  const text = JSON.stringify(value) ?? "";
  if (node.shownValue === text) return false;
  node.shownValue = text;
  return true;
}

/** Whoever stands on a link with the keyboard does not lose it. */
const hasFocus = (node) => node.contains(document.activeElement);

export class JobView {
  section = "queues";
  #id;
  #job = null;
  #state = badge("unknown");
  #name = el("p", { class: "subtitle" });
  #actions = el("span", { class: "buttons" });
  #crumbs = el("p", { class: "crumbs" });
  #why = el("ul", { class: "reasons" });
  #whyTitle = el("h2", {}, "Why is it not running?");
  #timeline = el("ol", { class: "timeline" });
  #facts = el("dl", { class: "facts" });
  #progress = el("progress", { max: 100, value: 0, "aria-label": "Progress" });
  #progressText = el("span", { class: "figure" });
  #data = el("pre", { tabindex: "0" });
  #result = el("pre", { tabindex: "0" });
  #stack = el("pre", { tabindex: "0" });
  #logs = el("ol", { class: "logs" });
  #logsEmpty = el("p", { class: "empty" }, "No logs.");

  constructor(app, [id]) {
    this.app = app;
    this.#id = id;
    this.title = `Job ${id}`;
    this.progressBox = el("div", { class: "progress" }, this.#progress, this.#progressText);
    this.stackBox = panel("Stack", this.#stack);
    this.resultBox = panel("Result", this.#result);
    this.node = el("div", {}, this.#crumbs,
      heading(id, this.#state, el("span", { class: "spring" }), this.#actions), this.#name,
      el("div", { class: "columns" },
        el("div", {}, el("section", { class: "panel why" }, this.#whyTitle, this.#why, this.progressBox),
          panel("Data", this.#data), this.resultBox, this.stackBox, panel("Logs", this.#logs, this.#logsEmpty)),
        el("div", {}, panel("Timeline", this.#timeline), panel("Facts", this.#facts))));
    this.node.querySelector("h1").classList.add("mono");
  }

  concerns(event) {
    return event.data.jobId === this.#id || event.data.queue === this.#job?.queue;
  }

  async refresh() {
    const path = `jobs/${segment(this.#id)}`;
    const [job, result, logs, why] = await Promise.all([
      get(path), get(`${path}/result`), get(`${path}/logs`), get(`${path}/explain`),
    ]);
    if (this.#job && this.#job.state !== job.job.state) announce(`The job is now ${job.job.state}`);
    this.#job = job.job;
    this.#showJob(job.job);
    this.#showReasons(why);
    this.resultBox.hidden = result.result === null && job.job.state !== "completed";
    if (isNew(this.#result, result.result)) setText(this.#result, json(result.result));
    this.#showLogs(logs.data.logs);
  }

  #showJob(job) {
    if (this.#crumbs.childElementCount === 0) {
      this.#crumbs.append(link("Queues", "queues"), " / ", link(job.queue, "queues", job.queue), " / ");
    }
    setBadge(this.#state, job.state);
    setText(this.#name, jobName(job));
    if (isNew(this.#actions, job.state)) {
      this.#actions.replaceChildren(...actionsOf(job).map(([word, question, isRemoval]) =>
        button(word, async () => { if (await question()) await this.#after(isRemoval); }, { class: isRemoval ? "danger" : null })));
    }
    if (isNew(this.#data, job.data)) setText(this.#data, json(job.data));
    this.stackBox.hidden = !job.stacktrace?.length;
    setText(this.#stack, (job.stacktrace ?? []).join("\n"));
    this.progressBox.hidden = !job.progress && job.state !== "active";
    this.#progress.value = Number(job.progress) || 0;
    const message = job.progressMessage === null || job.progressMessage === undefined ? "" : ` · ${typeof job.progressMessage === "string" ? job.progressMessage : JSON.stringify(job.progressMessage)}`;
    setText(this.#progressText, `${job.progress} %${message}`);
    const facts = FACTS.map(([word, show]) => [word, show(job)]).filter(([, shown]) => shown !== null && shown !== undefined && shown !== "" && shown !== 0);
    if (!hasFocus(this.#facts)) this.#facts.replaceChildren(...facts.flatMap(([word, shown]) => [el("dt", {}, word), el("dd", {}, shown)]));
    this.#showTimeline(job.timeline ?? []);
  }

  #showTimeline(steps) {
    keyed(this.#timeline, steps.map((step, index) => ({ ...step, index })), ({ index }) => index, (step) => {
      const before = steps[step.index - 1];
      return el("li", { "data-state": step.state },
        el("span", { class: "step" }, badge(step.state), step.attempt ? ` attempt ${step.attempt}` : ""),
        el("span", { class: "when" }, absolute(step.timestamp), before ? ` · ${duration(step.timestamp - before.timestamp)} later` : ""),
        step.error ? el("span", { class: "error" }, step.error) : null);
    });
  }

  #showReasons({ state, reasons }) {
    setText(this.#whyTitle, HOLDS.has(state) ? "Why is it not running?" : "Where it stands");
    if (!hasFocus(this.#why)) this.#why.replaceChildren(...reasons.map((reason) =>
      el("li", { "data-reason": reason.reason }, ...(REASONS[reason.reason]?.(reason) ?? [reason.reason]))));
  }

  #showLogs(lines) {
    this.#logsEmpty.hidden = lines.length > 0;
    this.#logs.hidden = lines.length === 0;
    keyed(this.#logs, lines.map((line, index) => ({ ...line, index })), ({ index, timestamp }) => `${index} ${timestamp}`, ({ timestamp, level, message }) =>
      el("li", { "data-level": level }, el("time", { title: absolute(timestamp) }, absolute(timestamp)),
        el("span", { class: "level" }, String(level ?? "")), el("span", {}, typeof message === "string" ? message : JSON.stringify(message))));
  }

  async #after(isRemoval) {
    if (isRemoval) location.hash = route("queues", this.#job.queue);
    else await this.app.refresh();
  }
}
