// The stream of events. Read with fetch, because EventSource cannot send a token; until it is open, the page polls.

import { address, headers } from "./api.js";

const SILENT_MS = 75_000; // more than two heartbeats
const FIRST_PAUSE_MS = 1_000;
const LAST_PAUSE_MS = 30_000;
const LINE_LIMIT = 1_048_576;

/** Calls `onEvent({name, data})` for each event and `onState("live" | "polling" | "denied")`. Runs for ever. */
export class Live {
  #onEvent;
  #onState;
  #lastId = "";
  #abort = null;
  #wake = null;
  isOpen = false;

  constructor(onEvent, onState) {
    this.#onEvent = onEvent;
    this.#onState = onState;
  }

  async run() {
    let pause = FIRST_PAUSE_MS;
    for (;;) {
      const wasOpen = await this.#read();
      pause = wasOpen ? FIRST_PAUSE_MS : Math.min(pause * 2, LAST_PAUSE_MS);
      await this.#sleep(pause);
    }
  }

  /** Connect anew, with whatever token there is now. */
  restart() {
    this.#lastId = "";
    this.#abort?.abort();
    this.#wake?.();
  }

  #sleep(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#wake = () => { clearTimeout(timer); resolve(); };
    });
  }

  async #read() {
    this.#abort = new AbortController();
    let timer;
    const watch = () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.#abort.abort(), SILENT_MS);
    };
    watch();
    try {
      const more = this.#lastId ? { "Last-Event-ID": this.#lastId } : {};
      const response = await fetch(address("events"), {
        headers: headers({ Accept: "text/event-stream", ...more }), cache: "no-store", signal: this.#abort.signal,
      });
      if (!response.ok || !response.headers.get("Content-Type")?.startsWith("text/event-stream")) {
        await response.body?.cancel();
        this.#onState(response.status === 401 ? "denied" : "polling");
        return false;
      }
      this.isOpen = true;
      this.#onState("live");
      await this.#readLines(response.body, watch);
    } catch { /* the connection is gone: polled until it is back */ } finally {
      clearTimeout(timer);
    }
    const wasOpen = this.isOpen;
    this.isOpen = false;
    this.#onState("polling");
    return wasOpen;
  }

  async #readLines(body, watch) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    let event = { name: "message", data: "" };
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      watch();
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      if (rest.length > LINE_LIMIT) throw new Error("no end of line");
      for (const line of lines) event = this.#take(line.replace(/\r$/, ""), event);
    }
  }

  #take(line, event) {
    if (line === "") {
      if (event.data) this.#deliver(event);
      return { name: "message", data: "" };
    }
    if (line.startsWith(":")) return event;
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "id") this.#lastId = value;
    else if (field === "event") event.name = value;
    else if (field === "data") event.data += value;
    return event;
  }

  #deliver({ name, data }) {
    let decoded;
    try {
      decoded = JSON.parse(data);
    } catch {
      return;
    }
    this.#onEvent({ name, data: decoded ?? {} });
  }
}
