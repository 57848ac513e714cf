// Makes and changes elements. Text is only ever text: nothing here, or anywhere, makes markup of it.

/** An element. `on` are listeners, other attributes are set as they are, null ones left out; strings become text. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function setText(node, text) {
  const shown = String(text ?? "");
  if (node.textContent !== shown) node.textContent = shown;
}

export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : value);
}

export function button(text, listener, attributes = {}) {
  return el("button", { type: "button", on: { click: listener }, ...attributes }, text);
}

/** Say something to those who do not see the page; what they have not heard yet is replaced. */
export function announce(text) {
  setText(document.getElementById("announcer"), text);
}

/** An address within the page. */
export function route(...parts) {
  const last = typeof parts.at(-1) === "object" ? parts.pop() : {};
  const query = new URLSearchParams(Object.entries(last).filter(([, value]) => value !== "" && value !== null));
  const path = `#/${parts.map(encodeURIComponent).join("/")}`;
  return query.size ? `${path}?${query}` : path;
}

const WORDS = { "waiting-children": "waits for others" };

/** A state, as a colour and a word. */
export function badge(state) {
  const node = el("span", { class: "badge" });
  setBadge(node, state);
  return node;
}

export function setBadge(node, state) {
  setAttribute(node, "data-state", state);
  setText(node, WORDS[state] ?? state);
}

/** Makes the children of `parent` show `items`. What stays is changed in place, so focus and selection stay too. */
export function keyed(parent, items, keyOf, make, change) {
  const former = parent.shownItems ?? new Map();
  const shown = new Map();
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    if (shown.has(key)) continue;
    const node = former.get(key) ?? make(item);
    former.delete(key);
    change?.(node, item);
    shown.set(key, node);
    if (node === place) place = place.nextSibling;
    else parent.insertBefore(node, place);
  }
  for (const node of former.values()) node.remove();
  parent.shownItems = shown;
}

/**
 * A table. A column has `title`, `width`, `kind` ("number" or none), and `text(item)`, to which `link(item)` may give an
 * address; or `make(item)` and `change(node, item)` for a cell that is more than a text.
 */
export class Table {
  #columns;
  #keyOf;
  #body = el("tbody");
  #empty;
  #scroll;

  constructor(caption, columns, keyOf, emptyText) {
    this.#columns = columns;
    this.#keyOf = keyOf;
    this.#empty = el("p", { class: "empty", hidden: true }, emptyText);
    const heads = columns.map(({ title, kind }) =>
      el("th", { scope: "col", class: kind ?? null }, title || el("span", { class: "hidden" }, "Actions")));
    const widths = columns.map(({ width }) => el("col", { class: `w-${width ?? "auto"}` }));
    const table = el("table", {}, el("caption", { class: "hidden" }, caption), el("colgroup", {}, ...widths),
      el("thead", {}, el("tr", {}, ...heads)), this.#body);
    this.#scroll = el("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" }, table);
    this.node = el("div", { class: "table" }, this.#scroll, this.#empty);
  }

  show(items, emptyText) {
    if (emptyText !== undefined) setText(this.#empty, emptyText);
    this.#empty.hidden = items.length > 0;
    this.#scroll.hidden = items.length === 0;
    keyed(this.#body, items, this.#keyOf, () => this.#row(), (row, item) => this.#change(row, item));
  }

  #row() {
    return el("tr", {}, ...this.#columns.map(({ kind }) => el("td", { class: kind ?? null })));
  }

  #change(row, item) {
    this.#columns.forEach((column, index) => {
      const cell = row.children[index];
      if (!cell.firstChild) cell.append(column.make ? column.make(item) : column.link ? el("a") : "");
      if (column.make) {
        column.change?.(cell.firstChild, item);
        return;
      }
      const text = column.text(item);
      const target = column.link ? cell.firstChild : cell;
      if (column.link) setAttribute(target, "href", column.link(item));
      setText(target, text);
      setAttribute(cell, "title", column.title_of ? column.title_of(item) : String(text).length > 18 ? text : null);
    });
  }
}

/** The head of a view. Its title takes the focus when the view opens. */
export function heading(text, ...more) {
  return el("div", { class: "heading" }, el("h1", { tabindex: "-1" }, text), ...more);
}

export function panel(title, ...content) {
  return el("section", { class: "panel" }, el("h2", {}, title), ...content);
}

/** Previous and next; `go(page)` is called with the page asked for, from 0. */
export class Pager {
  #previous = button("Previous", () => this.#go(this.#page - 1));
  #next = button("Next", () => this.#go(this.#page + 1));
  #text = el("span", { class: "pager-text" });
  #page = 0;
  #go;

  constructor(go) {
    this.#go = go;
    this.node = el("nav", { class: "pager", "aria-label": "Pages" }, this.#text, this.#previous, this.#next);
  }

  show(page, size, shown, total) {
    this.#page = page;
    const first = page * size + 1;
    setText(this.#text, shown ? `${first.toLocaleString("en")}–${(first + shown - 1).toLocaleString("en")} of ${Math.max(total, first + shown - 1).toLocaleString("en")}` : "");
    this.#previous.disabled = page === 0;
    this.#next.disabled = first + size > total;
    this.node.hidden = page === 0 && total <= size;
  }
}
