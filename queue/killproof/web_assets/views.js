// What each page shows. A view is { title, element, load(), live(latest) }: `load` fetches what the
// page is about, `live` takes in each event.

import {
  ago, badge, bars, count, fill, h, keyed, line, moment, now, plain, say, short, span, stretch, table,
  when,
} from "./elements.js";

const STATES = ["available", "leased", "retryable", "scheduled", "blocked", "held", "dead",
  "succeeded", "cancelled", "expired"];
const ENDED = ["succeeded", "dead", "cancelled", "expired"];
const WAITING = ["blocked", "scheduled", "retryable", "available"];
const WORDS = {
  available: "waiting", leased: "running", retryable: "will retry", scheduled: "scheduled",
  blocked: "blocked", held: "held", dead: "dead letters", succeeded: "succeeded",
  cancelled: "cancelled", expired: "expired",
};
const RELOAD_MS = 2000;
const KINDS = 50;  // As many as the server tells.

const jobLink = (id) => h("a", { href: `#/job/${id}` }, `#${id}`);
const jobsOf = (query) => `#/jobs?${new URLSearchParams(query)}`;
const empty = (...children) => h("p", { class: "empty" }, ...children);
const errorOf = (one) => [one.error_class, one.error_message?.trim().split("\n")[0]]
  .filter(Boolean).map((text) => short(text)).join(": ");

// The overview.

function overview(page) {
  const tiles = h("ul", { class: "tiles states" });
  const pace = h("ul", { class: "tiles pace" });
  const charts = h("div", { class: "charts" });
  const kinds = h("tbody");
  const kindTable = table("Kinds of job", [["Kind", "text"], ["Waiting", "num"], ["Running", "num"],
    ["Failed", "num"], ["Mean time", "num"], ["p95", "num wide"], ["Starts", "wide"],
    ["Action", "act"]], kinds);
  const manyKinds = h("p", { class: "note", hidden: true },
    `Of what waits and runs, the first ${KINDS} kinds by name are shown.`);
  const noKinds = empty("No jobs yet. Put one in: ",
    h("code", null, "killproof enqueue hello '{\"name\": \"Ada\"}'"));
  const failures = h("div");
  const element = h("div", null,
    h("h1", null, "Overview"),
    h("section", { "aria-label": "Jobs by state" }, tiles),
    h("h2", null, "Pace"), pace, charts,
    h("h2", null, "Kinds"), noKinds, kindTable, manyKinds,
    h("p", { class: "note" }, "Failed: the share of executions that failed. It and the times are of the ",
      "latest 1,000 jobs that succeeded and 1,000 that died within the last hour."),
    h("h2", null, "Latest dead letters"), failures,
    h("p", { class: "buttons" }, h("a", { href: jobsOf({ state: "dead" }) }, "All dead letters"),
      h("a", { href: jobsOf({ state: "retryable" }) }, "Jobs that will retry")));

  function live(latest) {
    keyed(tiles, STATES, (state) => state, makeStateTile, (tile, state) =>
      setTile(tile, count(latest.counts[state]), !latest.counts[state]));
    livePace(pace, charts, latest);
    const rows = kindRows(latest);
    noKinds.hidden = rows.length > 0;
    kindTable.hidden = !rows.length;
    kindTable.dataset.acts = String(page.may("pause"));
    manyKinds.hidden = Object.keys(latest.waiting).length < KINDS;
    keyed(kinds, rows, (row) => row.kind, () => h("tr"), (tr, row) => kindRow(page, tr, row));
    liveFailures(page, failures, latest);
  }
  return { title: "Overview", element, live };
}

function makeStateTile(state) {
  return h("li", null, h("a", { class: "tile", href: jobsOf({ state }), "data-state": state },
    h("span", { class: "number" }), h("span", { class: "name" }, WORDS[state])));
}

function setTile(item, text, isNone) {
  const tile = item.firstElementChild;
  tile.dataset.none = String(isNone);
  say(tile.querySelector(".number"), text);
}

function livePace(pace, charts, latest) {
  const minute = latest.last_minute;
  const workers = latest.workers;
  const facts = [
    ["enqueued per minute", count(minute.enqueued), !minute.enqueued],
    ["finished per minute", count(minute.succeeded + minute.dead), !(minute.succeeded + minute.dead)],
    ["oldest waiting", latest.counts.available ? span(latest.oldest_waiting_ms) : "none",
      !latest.counts.available],
    [workers.dead ? `workers alive, ${workers.dead} dead` : "workers alive",
      count(workers.alive + workers.untold), !(workers.alive + workers.untold)],
  ];
  fill(pace, facts.map(([name, text, isNone]) => {
    const item = h("li", null, h("div", { class: "tile" },
      h("span", { class: "number" }), h("span", { class: "name" }, name)));
    setTile(item, text, isNone);
    return item;
  }));
  const series = [["enqueued", "Enqueued"], ["succeeded", "Succeeded"], ["dead", "Died"]];
  fill(charts, series.map(([name, title]) => {
    const values = latest.minutes.map((entry) => entry[name]);
    const most = Math.max(...values);
    const label = `${title} per minute, the last ${values.length} minutes: `
      + `${values.at(-1)} in the current one, ${most} at most`;
    return h("figure", { class: "chart", "data-series": name },
      h("figcaption", null, h("span", null, `${title} per minute`),
        h("span", null, "most ", h("strong", null, count(most)))), bars(values, label));
  }));
}

function kindRows(latest) {
  const names = new Set([...latest.kinds.map((one) => one.kind), ...Object.keys(latest.waiting),
    ...Object.keys(latest.running), ...latest.closed.map((one) => one.kind)]);
  return [...names].sort().map((kind) => ({
    kind,
    waiting: own(latest.waiting, kind),
    running: own(latest.running, kind),
    ended: latest.kinds.find((one) => one.kind === kind),
    closed: latest.closed.filter((one) => one.kind === kind),
    now: latest.now_ms,
  }));
}

/** The count of a kind, which may be called "constructor", as something else of each object is. */
function own(counts, kind) {
  return Object.hasOwn(counts, kind) ? counts[kind] : 0;
}

function kindRow(page, tr, row) {
  const ended = row.ended;
  const isPaused = row.closed.some((one) => one.reason === "paused");
  const starts = row.closed.map((one) => (one.until_ms === null ? line(one.reason)
    : `${line(one.reason)}, ${span(one.until_ms - row.now)} more`)).join("; ") || "yes";
  const cells = [
    count(row.waiting), count(row.running),
    ended?.failure_ratio != null ? `${(100 * ended.failure_ratio).toFixed(1)}%` : "-",
    ended?.execution_mean_ms != null ? span(ended.execution_mean_ms) : "-",
    ended?.execution_p95_ms != null ? span(ended.execution_p95_ms) : "-",
    starts,
  ];
  const action = isPaused ? "resume" : "pause";
  const shape = page.may(action) ? action : "";
  if (tr.dataset.shape !== shape) {
    tr.dataset.shape = shape;
    fill(tr, h("th", { scope: "row", class: "text" },
      h("a", { href: jobsOf({ kind: row.kind }) }, line(row.kind))),
    ...["num", "num", "num", "num", "num wide", "wide"].map((name) => h("td", { class: name })),
    h("td", { class: "act" }, shape ? kindButton(page, row.kind, action) : null));
  }
  cells.forEach((text, index) => say(tr.children[index + 1], text));
}

function kindButton(page, kind, action) {
  const isPause = action === "pause";
  return h("button", {
    type: "button", class: "small", "aria-label": `${isPause ? "Pause" : "Resume"} ${line(kind)}`,
    onclick: () => page.act(`api/${action}`, { kind },
      isPause ? `No job of kind ${kind} starts until it is resumed.`
        : `Jobs of kind ${kind} start again.`,
      isPause ? { title: `Pause ${line(kind)}?`, yes: "Pause it",
        text: "What is running goes on; nothing of this kind starts until it is resumed." } : null),
  }, isPause ? "Pause" : "Resume");
}

function liveFailures(page, parent, latest) {
  if (!latest.failures.length) {
    if (!parent.querySelector(".empty")) fill(parent, empty("No job has died."));
    return;
  }
  parent.querySelector(".empty")?.remove();
  keyed(parent, latest.failures, (job) => `${job.id}.${job.fence}`, (job) => {
    const body = h("div", null, "loading");
    const details = h("details", null, h("summary", null, h("strong", null, `#${job.id} `),
      `${line(job.kind)}: ${errorOf(job)} `, h("span", { class: "note" })), body);
    details.addEventListener("toggle", async () => {
      if (!details.open || details.dataset.loaded) return;
      details.dataset.loaded = "true";
      try {
        fill(body, h("p", null, "Everything about ", jobLink(job.id)),
          ...tracebacks(await page.get(`api/jobs/${job.id}?text=1`)));
      } catch (error) {
        delete details.dataset.loaded;
        fill(body, plain(error.message));
      }
    });
    return details;
  }, (details, job) => say(details.querySelector("summary .note"),
    `${span(latest.now_ms - job.finished_ms)} ago, after ${job.attempt} of ${job.max_attempts} attempts`));
}

function tracebacks(job) {
  const failed = job.attempts.filter((attempt) => attempt.error_class);
  const last = failed.at(-1);
  if (!last) return [h("p", null, "No attempt left an error.")];
  return [h("pre", { class: "trace", tabindex: "0", role: "region", "aria-label": "Traceback" },
    plain(last.traceback ?? `${last.error_class}: ${last.error_message}`))];
}

// A list of jobs.

function jobs(page, { query }) {
  const asked = { state: query.get("state") ?? "", kind: query.get("kind") ?? "",
    search: query.get("search") ?? "", before: query.get("before") ?? "" };
  const state = h("select", { name: "state" }, h("option", { value: "" }, "any"),
    STATES.map((name) => h("option", { value: name, selected: name === asked.state },
      name === WORDS[name] ? name : `${name} (${WORDS[name]})`)));
  const kind = h("input", { name: "kind", value: asked.kind, maxlength: "200" });
  const search = h("input", { name: "search", type: "search", value: asked.search, maxlength: "200" });
  const form = h("form", { class: "filter", role: "search", onsubmit: (event) => {
    event.preventDefault();
    const id = search.value.trim().match(/^#(\d+)$/);
    const wanted = Object.entries({ state: state.value, kind: kind.value.trim(),
      search: search.value.trim() }).filter(([, value]) => value);
    location.hash = id ? `#/job/${id[1]}` : jobsOf(wanted);
  } },
  h("label", null, "State", state), h("label", null, "Kind", kind),
  h("label", { class: "grow" }, "Text in kind, key, error, payload or result; or #ID", search),
  h("button", null, "Show"));
  const body = h("tbody");
  const result = table("Jobs", [["Job", "num"], ["Kind, and what comes next", "text"],
    ["State", ""], ["Priority", "num wide"], ["Since", "when wide"]], body);
  const note = h("p", { class: "note", role: "status" });
  const pager = h("p", { class: "buttons" });
  const bulk = h("p", { class: "buttons" });
  const element = h("div", null, h("h1", null, "Jobs"), form, bulk, result, note, pager);

  async function load() {
    const parameters = Object.entries(asked).filter(([, value]) => value);
    const found = await page.get(`api/jobs?${new URLSearchParams([...parameters, ["limit", "50"]])}`);
    keyed(body, found.jobs, (job) => job.id, () => h("tr"), (tr, job) => jobRow(tr, job));
    result.hidden = !found.jobs.length;
    say(note, sentence(found, asked));
    fill(pager, asked.before ? h("a", { href: jobsOf(withoutCursor(asked)) }, "From the start") : null,
      found.next ? h("a", { href: jobsOf([...withoutCursor(asked), ["before", found.next]]) },
        found.jobs.length < 50 ? "Look further" : "Next page") : null);
    // Not beside a search: it would replay what is not in the list.
    fill(bulk, page.may("replay_all") && !asked.search && ["dead", "cancelled", "expired"].includes(asked.state)
      ? replayAll(page, asked, load) : null);
  }
  return { title: asked.state ? `Jobs: ${asked.state}` : "Jobs", element, load,
    live: asked.before || asked.search ? undefined : reloading(load) };
}

const withoutCursor = (asked) => Object.entries(asked)
  .filter(([name, value]) => value && name !== "before");

/** Load again when something has changed, and not all the time. */
function reloading(load) {
  let at = Date.now();
  return () => {
    if (Date.now() - at < RELOAD_MS) return;
    at = Date.now();
    load().catch(() => {});  // The frame says when the server does not answer.
  };
}

function sentence(found, asked) {
  const looked = found.next && found.jobs.length < 50
    ? ` Looked at ${count(found.looked_at)} jobs so far; there are more.` : "";
  if (!found.jobs.length) {
    if (looked) return `Nothing found yet.${looked}`;
    return asked.kind || asked.search || asked.state ? "There is no such job." : "No jobs yet.";
  }
  return `${count(found.jobs.length)} ${found.jobs.length === 1 ? "job" : "jobs"}.${looked}`;
}

function jobRow(tr, job) {
  if (!tr.children.length) {
    fill(tr, h("th", { scope: "row", class: "num" }, jobLink(job.id)),
      h("td", { class: "text" }, h("span"), h("span", { class: "next clip" })),
      h("td"), h("td", { class: "num wide" }), h("td", { class: "when wide" }));
  }
  const cells = tr.children;
  say(cells[1].firstChild, line(job.kind));
  say(cells[1].lastChild, line(job.summary));
  if (cells[2].textContent !== job.state) fill(cells[2], badge(job.state));
  say(cells[3], String(job.priority));
  say(cells[4], moment(job.finished_ms ?? job.created_ms));
}

function replayAll(page, asked, load) {
  const which = `all ${asked.state} jobs${asked.kind ? ` of kind ${line(asked.kind)}` : ""}`;
  return h("button", { type: "button", onclick: async () => {
    const body = { state: asked.state, ...(asked.kind ? { kind: asked.kind } : {}) };
    await page.act("api/replay", body, (done) => `Replayed ${count(done.moved.length)} jobs.`,
      { title: `Replay ${which}?`, yes: "Replay them",
        text: "Each gets all its attempts again, 10,000 jobs at most." });
    await load();
  } }, `Replay ${which}`);
}

// One job.

function job(page, { id }) {
  const top = h("div");
  const actions = h("div", { class: "buttons", role: "group", "aria-label": "Actions",
    tabindex: "-1" });
  const standing = h("div");
  const rest = h("div");
  const element = h("div", null, top, actions, standing, rest);
  let seen = "";

  async function load() {
    const [facts, why, log] = await Promise.all([page.get(`api/jobs/${id}?text=1`),
      page.get(`api/jobs/${id}/explain`), page.get(`api/audit?job=${id}`)]);
    const shape = `${facts.state} ${page.me.name}`;
    fill(top, h("h1", null, `Job #${facts.id}: ${line(facts.kind)}`),
      h("p", null, badge(facts.state), facts.summary.startsWith(facts.state)
        ? short(facts.summary.slice(facts.state.length)) : `: ${short(facts.summary)}`), factsOf(facts));
    if (actions.dataset.shape !== shape) {
      const hadFocus = actions.contains(document.activeElement);
      actions.dataset.shape = shape;
      fill(actions, actionsOf(page, facts, load));
      if (hadFocus) actions.focus();  // Not on a button: another one may stand there now.
    }
    fill(standing, ENDED.includes(facts.state) ? null : [h("h2", null,
      facts.state === "leased" ? "Who runs it" : "Why it does not run"), reasons(why)]);
    const told = JSON.stringify([facts.attempts, facts.state, facts.fence, facts.payload, facts.result,
      log.entries]);
    if (told === seen) return;
    seen = told;  // A traceback that is being read must not fold or move.
    fill(rest, h("h2", null, "Attempts"), timeline(facts),
      h("h2", null, "Payload"), textOf(facts.payload, facts.id, "Payload"),
      facts.result ? [h("h2", null, "Result"), textOf(facts.result, facts.id, "Result")] : null,
      log.entries.length ? [h("h2", null, "Decisions"), auditTable(log.entries)] : null);
  }
  return { title: `Job #${id}`, element, load, live: reloading(load) };
}

function factsOf(facts) {
  const entries = [
    ["Priority", `${facts.priority}${facts.priority === 0 ? " (urgent)" : ""}`],
    ["Attempts", `${facts.attempt} of ${facts.max_attempts}`],
    ["Failures, crashes", `${facts.failures}, ${facts.crashes}`],
    ["Put in", ago(facts.created_ms)],
    ENDED.includes(facts.state) ? ["Ended", ago(facts.finished_ms)]
      : ["Due", ago(facts.due_ms)],
    facts.expires_ms !== null ? ["Deadline", ago(facts.expires_ms)] : null,
    facts.key !== null ? ["Key", line(facts.key)] : null,
    ["Retry policy", line(facts.retry)], ["Lease", span(facts.lease_ms)],
    facts.owner ? ["Worker", line(facts.owner).slice(0, 8)] : null,
    facts.progress ? ["Progress", progressText(facts.progress)] : null,
    facts.stored_steps.length ? ["Steps done", facts.stored_steps.map(line).join(", ")] : null,
  ];
  return h("dl", { class: "facts" }, entries.filter(Boolean).map(([name, value]) =>
    h("div", null, h("dt", null, name), h("dd", null, value))));
}

function actionsOf(page, facts, load) {
  const id = facts.id;
  const isEnded = ENDED.includes(facts.state);
  const button = (action, text, done, question, body = {}) => h("button", { type: "button",
    onclick: async () => {
      await page.act(`api/jobs/${id}/${action}`, body, done, question);
      await load();
    } }, text);
  if (!page.me.name) {
    return [h("span", { class: "note" }, "Read-only."),
      h("button", { type: "button", onclick: page.askForToken }, "Give a token to act")];
  }
  if (!page.may("cancel")) return [h("span", { class: "note" }, "Your role reads only.")];
  const found = [];
  if (["dead", "cancelled", "expired"].includes(facts.state)) {
    found.push(button("replay", "Replay", `Job ${id} has all its attempts again.`));
  }
  if (facts.state === "held") found.push(button("unhold", "Release", `Job ${id} may run now.`));
  if (WAITING.includes(facts.state)) found.push(button("hold", "Hold", `Job ${id} is held.`));
  if (!isEnded) {
    found.push(button("urgent", "Make urgent", `Job ${id} comes before every other.`));
    found.push(button("cancel", "Cancel", `Job ${id} is cancelled.`, { yes: "Cancel the job",
      title: `Cancel job #${id}?`, text: facts.state === "leased"
        ? "It is running: its handler learns it at its next heartbeat, and its outcome is refused."
        : "It will not run; a replay brings it back." }));
    const chosen = h("select", { "aria-label": "Priority" }, [...Array(10).keys()].map((value) =>
      h("option", { value, selected: value === facts.priority }, value ? `${value}` : "0 (urgent)")));
    found.push(h("span", { class: "pair" }, chosen, h("button", { type: "button",
      onclick: async () => {
        await page.act(`api/jobs/${id}/reprioritise`, { priority: Number(chosen.value) },
          `Job ${id} has priority ${chosen.value}.`);
        await load();
      } }, "Set priority")));
  }
  return found.length ? found : [h("span", { class: "note" }, "It has ended well: nothing to decide.")];
}

function reasons(why) {
  if (!why.reasons.length) return h("p", null, "Nothing keeps it: the next claim takes it.");
  return h("ul", { class: "reasons" }, why.reasons.map((reason) => h("li", null,
    h("strong", null, reason.keeps ? "Keeps it: " : "Does not keep it: "), short(reason.text, 600),
    reason.remedy ? [h("br"), h("code", null, line(reason.remedy))] : null)));
}

function timeline(facts) {
  const all = facts.attempts.map((attempt) => ({ ...attempt, until: attempt.finished_ms }));
  if (facts.state === "leased") {
    all.push({ fence: facts.fence, outcome: "leased", worker: facts.owner,
      started_ms: facts.claimed_ms, until: Math.max(now(), facts.claimed_ms) });
  }
  if (!all.length) return empty("It has not been attempted yet.");
  const from = all[0].started_ms;
  const whole = Math.max(1, all.at(-1).until - from);
  const failed = all.filter((attempt) => attempt.error_class);
  const before = facts.attempts_left_out;
  const number = (index) => before + index + 1;
  const list = h("ol", { class: "timeline" }, all.map((attempt, index) =>
    h("li", { "data-outcome": attempt.outcome },
      h("div", null, h("strong", null, `${number(index)}. ${attempt.outcome === "leased" ? "running"
        : attempt.outcome}`), attempt.outcome === "leased" ? ` since ${moment(attempt.started_ms)}`
        : ` ${moment(attempt.started_ms)}, for ${span(attempt.until - attempt.started_ms)}`,
      `, worker ${line(attempt.worker).slice(0, 8)}`),
      stretch((attempt.started_ms - from) / whole, (attempt.until - from) / whole, attempt.outcome),
      attempt.error_class ? h("details", { open: attempt === failed.at(-1) },
        h("summary", null, errorOf(attempt)),
        h("pre", { class: "trace", tabindex: "0", role: "region",
          "aria-label": `Traceback of attempt ${number(index)}` },
        plain(attempt.traceback ?? attempt.error_message ?? ""))) : null)));
  return before ? [h("p", { class: "note" }, `${count(before)} earlier attempts are left out: `,
    h("code", null, `killproof show ${facts.id} --json`)), list] : list;
}

function textOf(value, id, name) {
  const isCut = value.text.length < value.chars;
  return h("div", null, h("pre", { tabindex: "0", role: "region", "aria-label": name },
    plain(value.text)),
    value.text.includes('"killproof_payload"') ? h("p", { class: "note" },
      "It lies in a file beside the database: ", h("code", null, `killproof payloads show ${id}`)) : null,
    isCut ? h("p", { class: "note" }, `The first ${count(value.text.length)} of `
      + `${count(value.chars)} characters; all of it: `, h("code", null, `killproof show ${id} --json`))
      : null);
}

// What other parts of the queue have: limits, workflow runs, schedules.

/** A page that is one list: loaded again when something has changed. */
function listed(title, address, how, show) {
  return (page) => {
    const result = h("div");
    const element = h("div", null, h("h1", null, title), result);
    async function load() {
      const found = show(await page.get(address));
      fill(result, found ?? empty("None yet. ", h("code", null, how)));
    }
    return { title, element, load, live: reloading(load) };
  };
}

const row = (...cells) => h("tr", null, cells.map(([kind, ...inside], index) =>
  (index ? h("td", { class: kind }, ...inside) : h("th", { scope: "row", class: kind }, ...inside))));

const RULES = {
  running: () => "full", rate: () => "out of tokens", closed: (gate) => `closed: ${line(gate.why)}`,
  breaker: () => "breaker open",
};

function limits(answer) {
  const aging = Object.entries(answer.aging);
  if (!answer.limits.length && !aging.length) return null;
  return [table("Limits", [["Limit", "text"], ["Kinds", "text"], ["Running", "num"],
    ["Starts", ""], ["Breaker", "wide"], ["Now", "text"]],
  h("tbody", null, answer.limits.map((one) => row(["text", line(one.name)],
    ["text", one.kinds.map(line).join(", ")],
    ["num", one.running_max === null ? count(one.running) : `${one.running} of ${one.running_max}`],
    ["", one.rate === null ? "any" : `${one.rate} per s, ${one.tokens} of ${one.burst} now`],
    ["wide", one.breaker ? `${one.breaker.state}, ${one.breaker.seen} of ${one.breaker.failures}` : "-"],
    ["text", one.gates.map((gate) => RULES[gate.rule](gate)
      + (gate.until_ms === null ? "" : `, ${span(gate.until_ms - now())} more`)).join("; ")
      || "open"])))),
  ...aging.map(([kind, seconds]) => h("p", { class: "note" },
    `${line(kind)} ages: priority 0 after ${span(seconds * 1000)}.`))];
}

const runLink = (id) => h("a", { href: `#/workflow/${id}` }, `#${id}`);

function workflows(answer) {
  if (!answer.workflows.length) return null;
  return table("Workflow runs", [["Run", "num"], ["Workflow", "text"], ["State", ""],
    ["Steps done", "num"], ["Started", "when"], ["Took", "num wide"], ["Key", "text wide"]],
  h("tbody", null, answer.workflows.map((run) => row(["num", runLink(run.id)],
    ["text", line(run.name)], ["", badge(run.state)], ["num", `${run.succeeded} of ${run.total}`],
    ["when", ago(run.created_ms)],
    ["num wide", span((run.finished_ms ?? now()) - run.created_ms)],
    ["text wide", line(run.key ?? "-")]))));
}

function workflow(page, { id }) {
  const element = h("div");
  let seen = "";
  async function load() {
    const run = await page.get(`api/workflows/${id}`);
    const told = JSON.stringify(run);
    if (told === seen) return;
    seen = told;
    const names = new Map(run.steps.map((step) => [step.job_id, step.name]));
    fill(element, h("h1", null, `Run #${run.id}: ${line(run.name)}`),
      h("p", null, badge(run.state), `, ${run.succeeded} of ${run.total} steps done, started `,
        ago(run.created_ms)),
      table("Steps", [["Step", "text"], ["Job", "num"], ["State", ""], ["Attempts", "num wide"],
        ["After", "text"], ["What", "text"]], h("tbody", null, run.steps.map((step) => row(
        ["text", `${step.undoes ? "undo " : ""}${line(step.name)}${step.item ? ` ${step.item}` : ""}`],
        ["num", jobLink(step.job_id)], ["", badge(step.state)],
        ["num wide", `${step.attempt} of ${step.max_attempts}`],
        ["text", [...new Set(step.needs.map((need) => names.get(need)).filter(Boolean))]
          .map(line).join(", ") || "-"],
        ["text", h("span", { class: "clip" }, stepText(step))])))));
  }
  return { title: `Run #${id}`, element, load, live: reloading(load) };
}

function progressText({ done, total, note }) {
  return `${done}${total ? ` of ${total}` : ""} ${line(note ?? "")}`.trim();
}

function stepText(step) {
  if (step.error_class) return errorOf(step);
  if (step.progress) return progressText(step.progress);
  return step.result === null ? "-" : line(JSON.stringify(step.result));
}

function schedules(answer) {
  if (!answer.schedules.length) return null;
  return table("Schedules", [["Schedule", "text"], ["Comes", "text"], ["Kind", "text"],
    ["Next", "when"], ["Last", "when wide"], ["Fired", "num wide"], ["Missed", "num wide"],
    ["Passed over", "num wide"]],
  h("tbody", null, answer.schedules.map((one) => row(["text", line(one.name)],
    ["text", one.definition.cron ? `${line(one.definition.cron)} in ${line(one.definition.zone)}`
      : `every ${span(one.definition.every_ms)}`],
    ["text", line(one.definition.kind)],
    ["when", ...(one.paused ? ["paused"] : one.next_ms === null ? ["never"]
      : [one.next_ms < now() ? "due " : null, ago(one.next_ms)])],
    ["when wide", one.last_slot_ms === null ? "-" : ago(one.last_slot_ms),
      one.last_job_id ? [" ", jobLink(one.last_job_id)] : null],
    ["num wide", count(one.fired)], ["num wide", count(one.missed)],
    ["num wide", count(one.overlapped)]))));
}

// Who did what.

function auditTable(entries) {
  return table("Audit log", [["When", "when"], ["Who did what", "text"],
    ["Outcome", "text"]], h("tbody", null, entries.map((entry) => h("tr", null,
    h("td", { class: "when" }, when(entry.at_ms)),
    h("td", { class: "text" }, `${line(entry.who)} (${entry.role}): `, h("strong", null,
      [entry.action, ...Object.entries(entry.detail).map((detail) => line(detail.join(" ")))]
        .join(", ")), " ", entry.job_id !== null ? jobLink(entry.job_id) : line(entry.kind ?? "")),
    h("td", { class: "text" }, badge(entry.outcome), entry.said ? `: ${line(entry.said)}` : null)))));
}

function audit(page, { query }) {
  const result = h("div");
  const pager = h("p", { class: "buttons" });
  const before = query.get("before");
  const element = h("div", null, h("h1", null, "Audit log"),
    h("p", { class: "note" }, "What was done through this page and its API. \"begun\" means that the ",
      "server ended before it could say what came of it: look at the job."), result, pager);
  async function load() {
    const found = await page.get(`api/audit?limit=50${before ? `&before=${before}` : ""}`);
    fill(result, found.entries.length ? auditTable(found.entries) : empty("Nothing was done yet."));
    fill(pager, before ? h("a", { href: "#/audit" }, "The latest") : null,
      found.next ? h("a", { href: `#/audit?before=${found.next}` }, "Earlier") : null);
  }
  return { title: "Audit log", element, load, live: before ? undefined : reloading(load) };
}

export const VIEWS = {
  overview, jobs, job, audit, workflow,
  limits: listed("Limits", "api/limits", "killproof limits set NAME --kind KIND --running 3", limits),
  workflows: listed("Workflow runs", "api/workflows", "killproof workflow --help", workflows),
  schedules: listed("Schedules", "api/schedules",
    "killproof schedules add NAME KIND JSON --every 1h", schedules),
};
