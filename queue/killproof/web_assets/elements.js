// Small pieces of the page: how an element is made, and how values are said.
//
// Text reaches the page through text nodes only: nothing here or elsewhere makes HTML of a text, and
// the policy of the page forbids it.

/** Make an element: attributes, properties that begin with "on", and children. */
export function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Put the children in place of what is there. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
}

/** Set a text only when it differs: a selection and a screen reader's place survive. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Bring the children of an element in line with a list, and keep those that are there already:
 * the focus, an open traceback and a selection stay where they are.
 */
export function keyed(parent, items, keyOf, make, update) {
  const there = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = there.get(key);
    if (child === undefined) {
      child = make(item);
      child.dataset.key = key;
    }
    there.delete(key);
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const child of there.values()) child.remove();
}

/** Text from anywhere, with what moves a cursor or turns the reading direction made visible. */
export function plain(text) {
  return String(text).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu, (char) =>
    char === "\n" || char === "\t" ? char : `\\u{${char.codePointAt(0).toString(16)}}`);
}

/** The same for one line. */
export function line(text) {
  return plain(text).replaceAll("\n", "\\n");
}

/** One line of at most so many characters: an error may be a page long, and is shown whole below. */
export function short(text, chars = 160) {
  const found = line(text);
  return found.length > chars ? `${found.slice(0, chars)} ...` : found;
}

let ahead = 0;

/** Take over the server's time: a browser's clock may be wrong by hours. */
export function setNow(ms) {
  ahead = ms - Date.now();
}

/** The moment that it is at the server. */
export function now() {
  return Date.now() + ahead;
}

export function count(number) {
  return Number(number).toLocaleString("en-US");
}

/** A duration in its two largest units, as the commands say it. */
export function span(ms) {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.floor(ms / 1000);
  const parts = [[Math.floor(seconds / 86400), "d"], [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"], [seconds % 60, "s"]];
  return parts.filter(([value]) => value).slice(0, 2).map((part) => part.join(" ")).join(" ");
}

/** A moment in UTC, to the second. */
export function moment(ms) {
  const date = new Date(ms);
  if (Number.isNaN(date.valueOf())) return `${ms} ms`;
  return `${date.toISOString().slice(0, 19).replace("T", " ")}Z`;
}

/** A moment as its distance from now, with the moment itself behind it. */
export function ago(ms) {
  const away = now() - ms;
  const text = away >= 0 ? `${span(away)} ago` : `in ${span(-away)}`;
  return h("time", { datetime: iso(ms), title: moment(ms) }, text);
}

/** A moment itself; it breaks between day and hour alone. */
export function when(ms) {
  return h("time", { datetime: iso(ms) }, moment(ms).split(" ").flatMap((part) =>
    [h("span", { class: "whole" }, part), " "]));
}

function iso(ms) {
  const date = new Date(ms);
  return Number.isNaN(date.valueOf()) ? null : date.toISOString();
}

export function badge(state) {
  return h("span", { class: "badge", "data-state": state }, state);
}

/** A table in a frame that scrolls by itself, so that the page never does sideways. */
export function table(label, columns, body) {
  const head = columns.map(([name, kind]) => h("th", { scope: "col", class: kind }, name));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    h("table", null, h("caption", { class: "unseen" }, label),
      h("thead", null, h("tr", null, head)), body));
}

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** Bars, one a minute; the same numbers are in its label. */
export function bars(values, label) {
  const width = 6;
  const height = 36;
  const top = Math.max(1, ...values);
  const picture = svg("svg", {
    viewBox: `0 0 ${values.length * width} ${height}`, role: "img", class: "bars",
    preserveAspectRatio: "none", "aria-label": label,
  });
  values.forEach((value, index) => {
    const tall = value ? Math.max(2, (value / top) * height) : 1;
    picture.append(svg("rect", {
      x: index * width, y: height - tall, width: width - 1.5, height: tall,
      class: value ? "bar" : "bar none",
    }));
  });
  return picture;
}

/** A stretch of time on a line from 0 to 1. */
export function stretch(from, until, outcome) {
  const picture = svg("svg", {
    viewBox: "0 0 1000 10", preserveAspectRatio: "none", class: "stretch", "aria-hidden": "true",
  });
  const x = Math.min(996, from * 1000);
  picture.append(svg("rect", { x: 0, y: 4, width: 1000, height: 2, class: "rail" }));
  picture.append(svg("rect", {
    x, y: 0, width: Math.max(4, (until - from) * 1000), height: 10, class: `mark ${outcome}`,
  }));
  return picture;
}
