// How much is pushed, completed and failed, over the last five minutes.

import { count, rate, timeOfDay } from "./format.js";
import { el, setAttribute, setText } from "./ui.js";

const WINDOW_S = 300;
const SERIES = [["pushed", "Pushed", "--line-pushed"], ["completed", "Completed", "--line-completed"], ["failed", "Failed", "--line-failed"]];
const HEIGHT = 150;

/** Samples of totals; kept while the page is open, whatever view is shown. */
class Throughput {
  #last = null;
  points = [[], [], [], []];

  add(stats, nowS) {
    const totals = [stats.totalPushed, stats.totalCompleted, stats.totalFailed];
    const last = this.#last;
    this.#last = { nowS, totals };
    // A total that is smaller than it was: another process answers.
    if (!last || nowS <= last.nowS || totals.some((total, index) => total < last.totals[index])) return;
    const rates = totals.map((total, index) => (total - last.totals[index]) / (nowS - last.nowS));
    // The first rate held from the first sample on; a single point would draw no line.
    for (const at of this.points[0].length ? [nowS] : [last.nowS, nowS]) [at, ...rates].forEach((value, index) => this.points[index].push(value));
    const stale = this.points[0].findIndex((at) => at >= nowS - WINDOW_S - 10);
    if (stale > 0) this.points = this.points.map((values) => values.slice(stale));
  }

  get latest() {
    return this.points.slice(1).map((values) => values.at(-1) ?? 0);
  }
}

export const throughput = new Throughput();

/** A colour of the style sheet, as a canvas understands it. */
function colour(name) {
  const probe = document.body.appendChild(el("span", { hidden: true }));
  probe.style.color = `var(${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

export class Chart {
  #plot = null;
  #box = el("div", { class: "plot", role: "img" });
  #figures = [];
  #observer;

  constructor() {
    const legend = SERIES.map(([name, word]) => {
      const figure = el("span", { class: "figure" }, "0");
      this.#figures.push(figure);
      return el("span", { class: "key", "data-line": name }, word, figure);
    });
    this.node = el("div", {}, el("div", { class: "legend" }, ...legend, el("span", { class: "unit" }, "jobs per second, last 5 minutes")), this.#box);
    this.#observer = new ResizeObserver(() => this.#fit());
    this.#observer.observe(this.#box);
  }

  /** Colours are read once per plot: a new theme needs a new one. */
  redraw() {
    this.#plot?.destroy();
    this.#plot = null;
    this.show();
  }

  close() {
    this.#observer.disconnect();
    this.#plot?.destroy();
    this.#plot = null;
  }

  show() {
    const latest = throughput.latest;
    latest.forEach((value, index) => setText(this.#figures[index], rate(value)));
    setAttribute(this.#box, "aria-label", SERIES.map(([, word], index) => `${word}: ${rate(latest[index])} per second`).join(", "));
    const width = this.#box.clientWidth;
    if (!width) return;
    this.#plot ??= new globalThis.uPlot(this.#options(width), throughput.points, this.#box);
    this.#plot.setData(throughput.points);
  }

  #fit() {
    if (this.#plot) this.#plot.setSize({ width: this.#box.clientWidth, height: HEIGHT });
    else this.show();
  }

  #options(width) {
    const axis = { stroke: colour("--muted"), font: "11px system-ui, sans-serif", ticks: { show: false }, grid: { stroke: colour("--line"), width: 1 } };
    return {
      width, height: HEIGHT, legend: { show: false }, cursor: { show: false }, padding: [8, 4, 0, 0],
      scales: {
        x: { time: true, range: () => { const now = Date.now() / 1_000; return [now - WINDOW_S, now]; } },
        y: { range: (_plot, _low, high) => [0, Math.max(5, (high ?? 0) * 1.15)] },
      },
      axes: [
        { ...axis, grid: { show: false }, size: 24, space: 90, incrs: [60, 120], values: (_plot, splits) => splits.map((at) => timeOfDay(at * 1_000)) },
        { ...axis, size: 48, space: 32, values: (_plot, splits) => splits.map((value) => count(value)) },
      ],
      series: [{}, ...SERIES.map(([, , name]) => ({ stroke: colour(name), width: 1.75, points: { show: false } }))],
    };
  }
}
