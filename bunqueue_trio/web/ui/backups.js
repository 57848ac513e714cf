// How backups go, where the server makes some.

import { get } from "./api.js";
import { absolute, relative } from "./format.js";
import { el, panel, setAttribute, setText } from "./ui.js";

const words = (backups) => {
  if (backups.error) return `Failing since ${relative(backups.failingSince)}: ${backups.error}`;
  if (backups.isRunning) return "A backup is being made.";
  return backups.lastSuccessAt === null ? "None yet." : `The last was made ${relative(backups.lastSuccessAt)}.`;
};

const logWords = (log) => {
  const trouble = log.error ? ` Changes are not uploaded since ${relative(log.failingSince)}: ${log.error}` : "";
  if (log.recoveryPointAt === null) return `Nothing could be restored yet if this machine were lost.${trouble}`;
  return `If this machine were lost now, what was done up to ${relative(log.recoveryPointAt)} could be restored.${trouble}`;
};

export class Backups {
  #text = el("p", { class: "subtitle" });
  #proven = el("p", { class: "subtitle" });
  #point = el("p", { class: "subtitle" });

  constructor() {
    this.node = panel("Backups", this.#text, this.#proven, this.#point);
    this.node.hidden = true;
  }

  async refresh() {
    const { backups } = await get("backups");
    this.node.hidden = backups === null;
    if (backups === null) return;
    setText(this.#text, words(backups));
    setText(this.#proven, backups.lastProvenAt === null ? "None has been read back." : `Read back and sound: that of ${relative(backups.lastProvenAt)}.`);
    this.#point.hidden = backups.log === null;
    if (backups.log !== null) {
      setText(this.#point, logWords(backups.log));
      setAttribute(this.#point, "title", backups.log.recoveryPointAt === null ? null : absolute(backups.log.recoveryPointAt));
    }
    setAttribute(this.#proven, "title", backups.lastProvenAt === null ? null : `${absolute(backups.lastProvenAt)}, ${backups.lastProvenKey}`);
  }
}
