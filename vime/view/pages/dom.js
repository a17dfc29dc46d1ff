// Elements, numbers and links. Data becomes text nodes and attributes only, never markup.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return made;
}

/** A number as people write it: 0.412, 1,234, 2e-06. The title of `numeric` has all its digits. */
export function short(value) {
  if (value == null) return "–";
  if (typeof value !== "number") return String(value);
  const size = Math.abs(value);
  if (value === 0 || Number.isInteger(value)) return value.toLocaleString("en-US");
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  return size < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(4)));
}

/** "1 token", "1,234 tokens". */
export const counted = (number, one, many = `${one}s`) => `${short(number)} ${number === 1 ? one : many}`;

export const numeric = (value, attributes = {}) =>
  element("td", { title: value == null ? null : String(value), ...attributes }, short(value));

export function duration(seconds) {
  if (seconds == null) return "–";
  const minutes = Math.floor(Math.round(seconds) / 60),
    rest = Math.round(seconds) % 60;
  if (minutes >= 60) return `${Math.floor(minutes / 60)}h${String(minutes % 60).padStart(2, "0")}m`;
  return minutes ? `${minutes}m${String(rest).padStart(2, "0")}s` : seconds < 10 ? `${seconds.toFixed(1)}s` : `${rest}s`;
}

/** The address of a page of the viewer, with words such as {run: "a", step: 3}; a list gives a word several times. */
export function link(page, words) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(words)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one != null && one !== "") query.append(name, one);
  }
  return `#${page}?${query}`;
}

export const anchor = (page, words, ...children) => element("a", { href: link(page, words) }, ...children);

const FIRST_ROWS = 50;

/** A table of cells with sortable columns: `columns` are {name, value(row), cell(row), left}. With `order`, an object of the page, a later table of this caption is sorted as this one was. */
export function sortable(columns, rows, { caption = "", order = {}, wrap = false } = {}) {
  const kept = (order[caption] ??= { by: null, up: false, most: FIRST_ROWS });
  const body = element("tbody"),
    head = element("tr"),
    all = element("button", {
      type: "button",
      onclick: () => {
        kept.most = Infinity;
        fill();
      },
    });
  const fill = () => {
    const by = columns.findIndex((column) => column.name === kept.by),
      sign = kept.up ? 1 : -1;
    const sorted = by < 0 ? rows : [...rows].sort((a, b) => sign * compared(columns[by].value(a), columns[by].value(b)));
    all.hidden = sorted.length <= kept.most;
    all.textContent = `Show all ${sorted.length}`;
    body.replaceChildren(
      ...sorted.slice(0, kept.most).map((row) =>
        element(
          "tr",
          {},
          columns.map((column) => column.cell(row)),
        ),
      ),
    );
    [...head.children].forEach((cell, place) =>
      cell.setAttribute("aria-sort", place !== by ? "none" : kept.up ? "ascending" : "descending"),
    );
  };
  head.append(
    ...columns.map((column) => {
      const turn = () => {
        kept.up = kept.by === column.name ? !kept.up : false;
        kept.by = column.name;
        fill();
      };
      return element(
        "th",
        { class: column.left ? "left" : null },
        element("button", { type: "button", onclick: turn }, column.name),
      );
    }),
  );
  fill();
  return element("div", { class: "card" }, element("table", { "aria-label": caption, class: wrap ? "wrap" : null }, element("thead", {}, head), body), all);
}

function compared(a, b) {
  if (a == null || b == null) return (a != null) - (b != null);
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}

export function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

export function problem(text) {
  return element("div", { class: "card problem", role: "alert" }, text);
}
