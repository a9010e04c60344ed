// The frame of the page: where one is, who one is, what is live, what was said.

import { count, fill, h, line, plain, say, setNow } from "./elements.js";
import { VIEWS } from "./views.js";

const PAGES = [["overview", "Overview"], ["jobs", "Jobs"], ["limits", "Limits"],
  ["workflows", "Workflows"], ["schedules", "Schedules"], ["audit", "Audit log"]];
const RETRY_MS = [500, 1000, 2000, 4000, 8000];
const COUNTS_SAID_MS = 10_000;

const $ = (id) => document.getElementById(id);

/** What all views share. */
const page = {
  me: { name: null, role: null, may: [], may_read: true, roles: {} },
  latest: null,  // the last event
  view: null,  // { live(latest), element }
  may: (action) => page.me.may.includes(action),
  get: (path) => answered(path),
  act,
  tell,
  askForToken,
};

// The server.

function headers() {
  const token = sessionStorage.getItem("token");
  return token ? { Authorization: `Bearer ${token}` } : {};
}

/** Fetch JSON; an answer that is no success is an error with the server's own line. */
async function answered(path, body) {
  const request = { headers: headers(), cache: "no-store" };
  if (body !== undefined) {
    request.method = "POST";
    request.headers["Content-Type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, request);
  } catch {
    throw new Error("the server does not answer: is killproof serve still running?");
  }
  const facts = await response.json().catch(() => ({ error: `the server said ${response.status}` }));
  if (!response.ok) throw Object.assign(new Error(facts.error), { status: response.status });
  return facts;
}

/** Do something and say what came of it; true if it was done. */
async function act(path, body, done, question) {
  if (question && !(await asked(question))) return false;
  try {
    const facts = await answered(path, body);
    tell(typeof done === "function" ? done(facts) : done);
    return true;
  } catch (error) {
    tell(error.message, true);
    return false;
  }
}

/** Resolve when somebody can see the page: a browser has six connections for all of its tabs. */
function seen() {
  if (!document.hidden) return undefined;
  link("waiting", "waits until it is looked at");
  return new Promise((resolve) => {
    document.addEventListener("visibilitychange", resolve, { once: true });
  });
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) page.stop?.();
});

/** Follow the events for ever: a stream that breaks is opened again, later each time. */
async function follow() {
  for (let failures = 0; ; failures += 1) {
    await seen();
    try {
      const response = await fetch("api/events", { headers: headers(), cache: "no-store" });
      if (response.status === 401) {
        link("refused", "a token is needed to read");
        await new Promise((resolve) => { page.wake = resolve; });
        failures = -1;
        continue;
      }
      if (!response.ok) throw new Error(String(response.status));
      let rest = "";
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      page.stop = () => reader.cancel();
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        const events = (rest + part.value).split("\n\n");
        rest = events.pop();
        for (const event of events) {
          const data = event.split("\n").find((text) => text.startsWith("data: "));
          if (event.includes("event: live") && data) {
            failures = 0;
            show(JSON.parse(data.slice(6)));
          }
        }
      }
    } catch { /* What went wrong is said below, and tried again. */ }
    if (document.hidden) {
      failures = -1;
      continue;
    }
    link("lost", "not connected, trying again");
    const wait = RETRY_MS[Math.min(Math.max(failures, 0), RETRY_MS.length - 1)];
    await new Promise((resolve) => setTimeout(resolve, wait * (0.75 + Math.random() / 2)));
  }
}

function show(latest) {
  if (latest.trouble) {
    link("trouble", "the queue can not be read");
    fill($("trouble"), h("p", null, plain(latest.trouble)),
      page.latest ? h("p", null, "The numbers below are those that were seen last.") : null);
    return;
  }
  fill($("trouble"));
  link("live", "live");
  page.latest = latest;
  setNow(latest.now_ms);
  say($("file"), plain(latest.path));
  sayCounts(latest.counts);
  page.view?.live?.(latest);
}

let saidAt = 0;

/** For screen readers: one sentence, not a stream of numbers. */
function sayCounts(counts) {
  const now = Date.now();
  if (now - saidAt < COUNTS_SAID_MS) return;
  saidAt = now;
  say($("counts"), `${count(counts.available)} waiting, ${count(counts.leased)} running, `
    + `${count(counts.succeeded)} succeeded, ${count(counts.dead)} dead`);
}

function link(state, text) {
  $("link").dataset.state = state;
  say($("link"), text);
}

let silence;

function tell(text, isError = false) {
  clearTimeout(silence);
  const said = $("said");
  said.dataset.error = String(isError);
  say(said, plain(text));
  if (!isError) silence = setTimeout(() => say(said, ""), 8000);
}

// Who one is.

async function learnWho() {
  try {
    page.me = await answered("api/me");
    setNow(page.me.now_ms);
  } catch (error) {
    if (error.status === 401) {
      sessionStorage.removeItem("token");
      tell(error.message, true);
      return learnWho();
    }
    tell(error.message, true);
  }
  say($("person"), page.me.name ? `${plain(page.me.name)}: ${page.me.role}`
    : page.me.may_read ? "Read-only" : "Give a token");
}

function askForToken() {
  const { name, role, roles } = page.me;
  say($("token-now"), name ? `${plain(name)}, ${role}: ${roles[role]}.`
    : "Without a token nothing can be changed.");
  $("token").value = "";
  $("token-forget").hidden = !name;
  $("token-dialog").showModal();
}

$("person").addEventListener("click", askForToken);
$("token-dialog").addEventListener("close", async () => {
  const choice = $("token-dialog").returnValue;
  const token = $("token").value.trim();
  $("token").value = "";
  if (choice === "use" && token) sessionStorage.setItem("token", token);
  else if (choice === "forget") sessionStorage.removeItem("token");
  else return;
  await learnWho();
  if (page.me.name) tell(`You are ${page.me.name}: ${page.me.roles[page.me.role]}.`);
  page.stop?.();
  page.wake?.();
  route();
});

let unanswered = null;

/**
 * Ask before what can not be taken back.
 *
 * A dialog tells of its closing in a later task, when the next question may stand in it already: that
 * is no answer to the new one, and the one before has none any more.
 */
function asked({ title, text, yes }) {
  unanswered?.(false);
  say($("ask-title"), title);
  say($("ask-text"), text);
  say($("ask-yes"), yes);
  const dialog = $("ask-dialog");
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    unanswered = resolve;
  });
}

$("ask-dialog").addEventListener("close", () => {
  if (!$("ask-dialog").open) unanswered?.($("ask-dialog").returnValue === "yes");
});

// How it looks.

const THEMES = ["system", "light", "dark"];

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  say($("theme"), `Theme: ${theme}`);
}

$("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme;
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
  localStorage.setItem("theme", next);
  setTheme(next);
});

// Where one is.

let isFirst = true;

async function route() {
  const [path, query] = location.hash.slice(1).split("?");
  const [name, id] = (path || "/overview").split("/").slice(1);
  const isLost = !VIEWS[name] || (["job", "workflow"].includes(name) && !/^\d+$/.test(id ?? ""));
  const make = isLost ? VIEWS.overview : VIEWS[name];
  for (const anchor of $("nav").querySelectorAll("a")) {
    const isHere = [name, `${name}s`].includes(anchor.dataset.page);
    if (isHere) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  }
  const view = make(page, { id, query: new URLSearchParams(query) });
  page.view = view;
  document.title = `${view.title} - Killproof`;
  fill($("main"), view.element);
  if (!isFirst) $("main").focus({ preventScroll: true });
  isFirst = false;
  if (page.latest) view.live?.(page.latest);
  try {
    await view.load?.();
  } catch (error) {
    if (page.view !== view) return;
    if (view.element.querySelector("h1")) tell(error.message, true);
    else fill(view.element, h("h1", null, view.title), h("p", { class: "empty", role: "alert" },
      line(error.message)));
  }
}

setTheme(THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "system");
fill($("nav"), h("ul", null, PAGES.map(([name, text]) =>
  h("li", null, h("a", { href: `#/${name}`, "data-page": name }, text)))));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();  // The address names the page; its part after # is taken.
  $("main").focus();
});
addEventListener("hashchange", () => {
  tell("");  // What was said is of the page before.
  route();
});
await learnWho();
route();
follow();
