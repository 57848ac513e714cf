// Questions to whoever sits there, and short news.

import { button, el, setText } from "./ui.js";

const NEWS_MS = 6_000;
const NEWS_MAX = 4;

/** A short notice; `kind` "error" stays longer. Spoken by screen readers. */
export function tell(text, kind = "done") {
  const box = document.getElementById("toasts");
  while (box.children.length >= NEWS_MAX) box.firstChild.remove();
  const node = el("p", { class: "toast", "data-kind": kind }, text);
  box.append(node);
  setTimeout(() => node.remove(), kind === "error" ? 2 * NEWS_MS : NEWS_MS);
}

function open(dialog) {
  document.body.append(dialog);
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => { dialog.remove(); resolve(dialog.returnValue); }, { once: true });
    dialog.showModal();
  });
}

/**
 * Ask before doing. Answers false, or the number of the field, or true where there is none.
 * `number`: {label, value, max}, a field for how many.
 */
export async function confirmed({ title, text, action, danger = false, number = null }) {
  const field = number && el("input", {
    type: "number", id: "how-many", min: 1, max: number.max, value: number.value, required: true, inputmode: "numeric",
  });
  const dialog = el("dialog", { "aria-labelledby": "question" });
  const form = el("form", { method: "dialog" },
    el("h2", { id: "question" }, title), el("p", {}, text),
    field && el("div", { class: "field" }, el("label", { for: "how-many" }, number.label), field),
    el("div", { class: "buttons" },
      button("Cancel", () => dialog.close(""), { autofocus: true }),
      el("button", { type: "submit", value: "yes", class: danger ? "danger" : "primary" }, action)));
  dialog.append(form);
  if (await open(dialog) !== "yes") return false;
  return field ? Number(field.value) : true;
}

/** Ask for a token until `accept(token)` takes one. */
export async function signIn(accept) {
  const field = el("input", {
    type: "password", id: "token", autocomplete: "off", spellcheck: "false", required: true, autofocus: true,
  });
  const error = el("p", { class: "error", role: "alert" });
  const dialog = el("dialog", { "aria-labelledby": "sign-in", id: "sign-in-dialog" });
  const form = el("form", {},
    el("h2", { id: "sign-in" }, "Sign in"),
    el("p", {}, "This server asks for a token. It is kept until this tab is closed."),
    el("div", { class: "field" }, el("label", { for: "token" }, "Token"), field), error,
    el("div", { class: "buttons" }, el("button", { type: "submit", class: "primary" }, "Sign in")));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    setText(error, "");
    const refusal = await accept(field.value.trim());
    if (refusal) {
      setText(error, refusal);
      field.select();
    } else dialog.close("yes");
  });
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  dialog.append(form);
  await open(dialog);
}

/** Ask, do, and tell how it went. `done(answer)` makes the notice. Answers whether it was done. */
export async function act(question, work, done) {
  const choice = await confirmed(question);
  if (choice === false) return false;
  try {
    tell(done(await work(choice)));
    return true;
  } catch (error) {
    tell(error.message, "error");
    return false;
  }
}
