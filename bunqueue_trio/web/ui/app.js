// Which view is shown, and when it is brought up to date.

import { get, hasToken, health, setToken } from "./api.js";
import { throughput } from "./chart.js";
import { CronsView } from "./crons.js";
import { signIn } from "./dialogs.js";
import { duration } from "./format.js";
import { JobView } from "./job.js";
import { JobsView } from "./jobs.js";
import { LettersView, QueueLettersView } from "./letters.js";
import { Live } from "./live.js";
import { QueuesView } from "./queues.js";
import { startTheme } from "./theme.js";
import { el, setAttribute, setText } from "./ui.js";
import { WorkersView } from "./workers.js";

const POLL_MS = 2_000; // while no stream is open
const SLOW_POLL_MS = 10_000; // while one is: times go on, and what no event tells of
const PAUSE_MS = 500; // between two refreshes that events ask for
const STATS_PAUSE_MS = 1_000;
const HEALTH_MS = 10_000;
const LINK_WORDS = { live: "Live", polling: "Polling", denied: "Signed out", off: "Offline" };

const ROUTES = {
  queues: (parts) => (parts.length ? JobsView : QueuesView),
  jobs: (parts) => (parts.length ? JobView : null),
  letters: (parts) => (parts.length ? QueueLettersView : LettersView),
  crons: () => CronsView,
  workers: () => WorkersView,
};

class App {
  #view = null;
  #main = document.getElementById("main");
  #link = document.getElementById("link");
  #notice = el("p", { class: "notice", role: "alert", hidden: true });
  #isSignedOut = false;
  #busy = null;
  #isStale = false;
  #refreshedAt = 0;
  #timer = 0;
  #statsAt = 0;
  #statsTimer = 0;
  #healthAt = 0;
  #state = "polling";
  #isReachable = true;
  #live = new Live((event) => this.#take(event), (state) => this.#linked(state));

  start() {
    startTheme(document.getElementById("theme"), () => this.#view?.themeChanged?.());
    document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); this.#main.focus(); });
    const out = document.getElementById("sign-out");
    out.hidden = !hasToken();
    out.addEventListener("click", () => { setToken(""); this.#signIn(); });
    addEventListener("hashchange", () => this.#open());
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.refresh(); });
    setInterval(() => this.#tick(), 500);
    this.#showHealth(performance.now());
    this.#open();
    this.#live.run();
  }

  /** Bring the view up to date; one at a time, and once more if somebody asks meanwhile. */
  refresh() {
    if (this.#isSignedOut) return Promise.resolve();
    if (this.#busy) {
      this.#isStale = true;
      return this.#busy;
    }
    const view = this.#view;
    this.#busy = this.attempt(() => view.refresh()).finally(() => {
      this.#busy = null;
      this.#refreshedAt = performance.now();
      if (this.#isStale || view !== this.#view) {
        this.#isStale = false;
        this.#soon(view === this.#view ? PAUSE_MS : 0);
      }
    });
    return this.#busy;
  }

  /** Do what may fail: the failure stands on the page until the next success. */
  async attempt(work) {
    const view = this.#view;
    try {
      await work();
      this.#isReachable = true;
      if (view === this.#view) this.#notice.hidden = true;
    } catch (error) {
      if (error.status === 401) this.#signIn();
      if (error.status === undefined) console.error(error);
      this.#isReachable = error.status !== 0;
      if (view !== this.#view) return;
      setText(this.#notice, error.message);
      this.#notice.hidden = this.#isSignedOut;
    }
    this.#showLink();
  }

  #open() {
    const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
    let parts;
    try {
      parts = path.split("/").filter(Boolean).map(decodeURIComponent);
    } catch {
      parts = [];
    }
    const [section = "queues", ...rest] = parts;
    const View = (Object.hasOwn(ROUTES, section) ? ROUTES[section](rest) : null) ?? QueuesView;
    const isFirst = this.#view === null;
    this.#view?.close?.();
    this.#view = new View(this, rest, new URLSearchParams(query));
    this.#notice.hidden = true;
    this.#main.replaceChildren(this.#notice, this.#view.node);
    document.title = `${this.#view.title} · bunqueue`;
    for (const link of document.querySelectorAll("nav a[data-section]")) {
      setAttribute(link, "aria-current", link.dataset.section === this.#view.section ? "page" : null);
    }
    if (!isFirst) {
      scrollTo(0, 0);
      this.#view.node.querySelector("h1")?.focus({ preventScroll: true });
    }
    this.refresh();
    this.#sample();
  }

  #tick() {
    if (document.hidden || this.#isSignedOut) return;
    const now = performance.now();
    const every = this.#live.isOpen ? SLOW_POLL_MS : POLL_MS;
    if (!this.#busy && now - this.#refreshedAt >= every) this.refresh();
    if (now - this.#statsAt >= every) this.#sample();
    if (now - this.#healthAt >= HEALTH_MS || !this.#healthAt) this.#showHealth(now);
  }

  #soon(pause) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => { this.#timer = 0; this.refresh(); }, pause);
  }

  // events

  #take(event) {
    if (document.hidden) return;
    if (event.name === "reset") {
      this.refresh();
      return;
    }
    this.#view.take?.(event);
    if (/^(job|batch|stats):/.test(event.name) && !this.#statsTimer) {
      const wait = Math.max(0, STATS_PAUSE_MS - (performance.now() - this.#statsAt));
      this.#statsTimer = setTimeout(() => { this.#statsTimer = 0; this.#sample(); }, wait);
    }
    if (this.#view.concerns(event) && !this.#timer) {
      this.#soon(Math.max(50, PAUSE_MS - (performance.now() - this.#refreshedAt)));
    }
  }

  #linked(state) {
    const wasLive = this.#state === "live";
    this.#state = state;
    this.#showLink();
    if (state === "denied") this.#signIn();
    if (state === "live" && !wasLive) this.refresh();
  }

  #showLink() {
    const state = this.#isSignedOut ? "denied" : this.#isReachable ? this.#state : "off";
    setAttribute(this.#link, "data-link", state);
    setText(this.#link, LINK_WORDS[state]);
  }

  // what is shown around the views

  async #sample() {
    if (this.#isSignedOut) return;
    this.#statsAt = performance.now();
    try {
      const { stats } = await get("stats");
      throughput.add(stats, Date.now() / 1_000);
      this.#view.showStats?.(stats);
    } catch { /* the view's own refresh says so */ }
  }

  async #showHealth(now) {
    this.#healthAt = now;
    const node = document.getElementById("health");
    try {
      const report = await health();
      setAttribute(node, "data-health", report.ok ? "ok" : "bad");
      setText(node, report.ok ? `Healthy · up ${duration(Math.max(1_000, report.uptime * 1_000))}` : `${report.status}${report.storage?.diskFull ? ": disk full" : ""}`);
      setAttribute(node, "title", `Version ${report.version}, ${report.memory.rss} MiB in memory`);
    } catch {
      setAttribute(node, "data-health", "bad");
      setText(node, "Unreachable");
    }
  }

  async #signIn() {
    if (this.#isSignedOut) return;
    this.#isSignedOut = true;
    const out = document.getElementById("sign-out");
    out.hidden = true;
    this.#main.replaceChildren();
    this.#showLink();
    await signIn(async (text) => {
      setToken(text);
      try {
        await get("ping");
        return "";
      } catch (error) {
        setToken("");
        return error.status === 401 ? "The server does not accept this token." : error.message;
      }
    });
    this.#isSignedOut = false;
    out.hidden = false;
    this.#live.restart();
    this.#open();
  }
}

new App().start();
