// Dark or light: as the system has it, until somebody chooses.

import { setText } from "./ui.js";

const STORED = "bunqueue.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

const read = () => {
  try {
    return localStorage.getItem(STORED);
  } catch {
    return null;
  }
};

const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";

/** Wire the button that changes the theme; `changed()` is called after each change. */
export function startTheme(control, changed) {
  const show = () => { setText(control, isDark() ? "Light" : "Dark"); control.setAttribute("aria-label", `Change to the ${isDark() ? "light" : "dark"} theme`); changed(); };
  const chosen = read();
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  system.addEventListener("change", show);
  control.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem(STORED, document.documentElement.dataset.theme);
    } catch { /* for this page only, then */ }
    show();
  });
  show();
}
