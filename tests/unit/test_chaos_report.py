"""The report of a run, made from stores that are written here by hand."""

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from bokeh.plotting import figure

from killproof_chaos import report_plots
from killproof_chaos.report import BYTES_MAX, render, write_markdown, write_report
from killproof_chaos.report_events import QUEUE_LANE
from killproof_chaos.report_figures import MARKS_MAX, figures_of, quantile, thinned
from killproof_chaos.report_witness import LANES_MAX, Timeline, timeline_of
from killproof_evidence.contract import Contract
from killproof_evidence.evidence import Evidence
from killproof_evidence.judge import judge
from killproof_evidence.store import Store, StoreError

START_NS = 5_000_000_000
WALL_MS = 1_790_000_000_000
LEASE_MS = 500
PIDS = {"p1.1": 100, "w1.1": 101, "w2.1": 102}
SECTIONS = ("promises", "time", "recovery", "phases", "obligations", "environment", "limits")


class Scene:
    """Writes a store record by record; every time is in ms since the start."""

    def __init__(self, path: Path) -> None:
        self.store = Store.create(path)
        self._lines: dict[Path, list[dict[str, Any]]] = {}
        self._numbers: dict[str, int] = {}
        self._changes = 0

    def _add(self, path: Path, record: dict[str, Any]) -> None:
        self._lines.setdefault(path, []).append(record)

    def call(self, process: str, f: str, at: float, end: float | None, **rest: Any) -> None:
        """An operation: `asked` goes with the call, everything else with its answer."""
        asked, kind = rest.pop("asked", {}), rest.pop("type", "ok")
        number = self._numbers[process] = self._numbers.get(process, 0) + 1
        head = {"pid": PIDS[process], "process": process, "n": number, "f": f}
        path = self.store.history_file(process)
        self._add(path, {"t": ns(at)} | head | {"type": "invoke"} | asked)
        if end is not None:
            self._add(path, {"t": ns(end)} | head | {"type": kind} | rest)

    def exit(self, process: str, at: float) -> None:
        number = self._numbers[process] = self._numbers.get(process, 0) + 1
        head = {"pid": PIDS[process], "process": process, "n": number}
        path = self.store.history_file(process)
        self._add(path, {"t": ns(at)} | head | {"f": "exit", "type": "ok"})

    def effect(self, process: str, what: str, at: float, fence: int, **rest: Any) -> None:
        pid = PIDS[process]
        record = {"t": ns(at), "pid": pid, "job": "j1", "attempt": fence, "fence": fence}
        self._add(self.store.effects / f"{pid}.jsonl", record | {"what": what} | rest)

    def change(self, at: float, old: str | None, new: str, fence: int = 0, job: int = 1) -> None:
        self._changes += 1
        record = {"seq": self._changes, "t_ms": WALL_MS + int(at), "job": job, "old": old}
        record |= {"new": new, "fence": fence, "attempts": fence}
        self._add(self.store.audit, record | ({"harness_id": f"j{job}"} if old is None else {}))

    def fault(self, fault: str, at: float, end: float | None = None, **rest: Any) -> None:
        record = {"t": ns(at), "fault": fault, "hit": True} | rest
        self._add(self.store.nemesis, record | ({} if end is None else {"t_end": ns(end)}))

    def recovery(self, kill: float, reclaim: float | None, *, idle: bool) -> None:
        facts = {"t_kill": ns(kill), "pid": 101, "job": 1, "peers_idle": idle}
        self._add(self.store.recovery, facts | {"t_reclaim": reclaim and ns(reclaim)})

    def finish(self, promises: dict[str, bool | str], **run: Any) -> Store:
        """Write everything and have it judged."""
        for path, records in self._lines.items():
            path.write_text("".join(json.dumps(record) + "\n" for record in records))
        parameters = {"lease_ms": LEASE_MS, "recovery_ms": 5_000}
        self.store.write_contract(Contract(promises=promises, parameters=parameters))
        self.store.write_run(
            {
                "target": "scene",
                "engine": "proc",
                "seed": 7,
                "argv": ["killproof", "chaos", "run", "--seed", "7"],
                "obligations": {"obliged": [], "hit": []},
                "started": 1_790_000_000.0,
                "environment": {"python": "3.11.7", "sqlite": "3.40.1", "fs": "ext4", "cores": 2},
                "replay": "killproof chaos replay kp1-abc",
                "broken": False,
            }
            | run
        )
        judge(self.store)
        return self.store


def ns(ms: float) -> int:
    return START_NS + int(ms * 1e6)


def zombie(path: Path, *, refused: bool = True, seen_awake: float = 700, **run: Any) -> Store:
    """Worker 1 is stopped past its lease, worker 2 does the job, worker 1 comes back to ack it."""
    scene = Scene(path)
    scene.call("p1.1", "enqueue", 0, 2, job=1, asked={"value": {"id": "j1", "script": ["ok"]}})
    scene.change(1, None, "available")
    scene.call("w1.1", "claim", 10, 12, job=1, fence=1)
    scene.change(11, "available", "leased", 1)
    scene.effect("w1.1", "start", 13, 1)
    scene.fault("pause", 20, seen_awake, pid=101, process="w1.1", phase="handler.start")
    scene.change(511, "leased", "available", 1)
    scene.call("w2.1", "claim", 519, 521, job=1, fence=2)
    scene.change(520, "available", "leased", 2)
    scene.effect("w2.1", "start", 522, 2)
    scene.effect("w2.1", "effect", 523, 2, outcome="ok")
    scene.effect("w2.1", "end", 524, 2, outcome="ok")
    scene.call("w2.1", "ack", 530, 532, asked={"job": 1, "fence": 2})
    scene.change(531, "leased", "succeeded", 2)
    answer = {"type": "fail", "value": {"error": "LeaseLost: gone"}} if refused else {}
    scene.call("w1.1", "ack", 705, 706, asked={"job": 1, "fence": 1}, **answer)
    scene.fault("heal", 710)
    for process in PIDS:
        scene.exit(process, 720)
    return scene.finish({"P5": True}, **run)


OBLIGATIONS = {
    "obliged": ["kill@claim.locked", "pause@handler.start", "a stale outcome was refused"],
    "hit": ["pause@handler.start", "a stale outcome was refused"],
}


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return zombie(tmp_path_factory.mktemp("store") / "passed")


@pytest.fixture(scope="module")
def violated(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return zombie(tmp_path_factory.mktemp("store") / "violated", refused=False)


@pytest.fixture(scope="module")
def unknown(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return zombie(tmp_path_factory.mktemp("store") / "unknown", obligations=OBLIGATIONS)


class Page(HTMLParser):
    """A page as a browser takes it apart."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._open):
            self.words.append(data)

    @property
    def text(self) -> str:
        """What a reader sees, in one line."""
        return " ".join(" ".join(self.words).split())

    def ids(self) -> set[str | None]:
        return {attributes.get("id") for _, attributes in self.tags}


def lanes_of(store: Store, number: str = "P5") -> Timeline:
    witness = store.read_verdict()["properties"][number]["witnesses"][0]
    timeline = timeline_of(Evidence(store), witness)
    assert timeline is not None
    return timeline


def look(timeline: Timeline, lane: str, words: str) -> str:
    """How a lane looks in the row that says these words."""
    row = next(row for row in timeline.rows if words in row.event.what)
    return row.lanes[timeline.lanes.index(lane)]


def test_the_page_opens_with_the_verdict_in_a_sentence(passed: Store) -> None:
    text = write_report(passed.path).read_text(encoding="utf-8")

    assert "<h1>No violation found in 0 kills, 1 pause, 1 job.</h1>" in text
    assert "✓ pass" in Page(text).text


def test_every_section_is_there_whatever_the_verdict(
    passed: Store, violated: Store, unknown: Store
) -> None:
    for store in (passed, violated, unknown):
        page = Page(render(store))

        assert set(SECTIONS) <= page.ids()
        assert "killproof chaos replay kp1-abc" in page.text
        assert "3.40.1" in page.text
    assert "broken" in Page(render(violated)).ids()
    assert "broken" not in Page(render(passed)).ids()


def test_each_row_begins_with_a_plain_sentence_and_ends_with_the_number(passed: Store) -> None:
    text = Page(render(passed)).text
    asked_first = [text.index(words) for words in (
        "No job is lost - not promised P1 P3 P17",
        "No effect happens twice - not promised P6",
        "Retries are bounded - not promised P8 P9",
    )]  # fmt: skip

    assert asked_first == sorted(asked_first)
    assert "A worker that lost its lease changes nothing, and is told ✓ no violation" in text


def test_an_unknown_run_says_why_and_marks_what_it_missed(unknown: Store) -> None:
    page = Page(render(unknown))

    assert "Why it is unknown" in page.text
    assert "1 of 3 obligations missed" in page.text
    assert ("td", {"class": "missed", "style": "--share: 0%"}) in page.tags
    assert "✓ a stale outcome was refused" in page.text
    assert "✗ kill@claim.locked" in page.text


def test_the_page_loads_nothing_and_forbids_it(violated: Store) -> None:
    page = Page(render(violated))
    loading = ("src", "srcset", "data", "action", "poster", "background", "formaction")
    links = [v for _, attributes in page.tags for k, v in attributes.items() if k == "href"]
    policies = [a.get("content") for t, a in page.tags if t == "meta" and "http-equiv" in a]

    assert not [tag for tag in page.tags if set(tag[1]) & set(loading)]
    assert links
    assert all(link is not None and link.startswith("#") for link in links)
    assert not [tag for tag, _ in page.tags if tag in ("link", "iframe", "object", "img")]
    assert policies == [
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "img-src data:; font-src data:"
    ]


def test_styles_of_the_page_name_no_address(violated: Store) -> None:
    text = render(violated)
    style = text[text.index("<style>") : text.index("</style>")]

    assert "url(" not in style
    assert "@import" not in style


def test_the_same_store_gives_the_same_bytes(violated: Store) -> None:
    first = render(violated)
    figure()  # Moves the counter by which bokeh numbers its models.

    assert render(violated) == first


def test_the_page_is_never_called_correct(passed: Store) -> None:
    assert "correct" not in Page(render(passed)).text.lower()


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>'\"\u202e\x00\ud800{{7*7}}"


def hostile(path: Path) -> Store:
    """A run in which everything that a store can hold is hostile."""
    store = zombie(path, refused=False)
    run = store.read_run() | {"target": HOSTILE, "argv": [HOSTILE], "replay": HOSTILE}
    run["obligations"] = {"obliged": [HOSTILE, f"kill@{HOSTILE}.begin"], "hit": []}
    run["environment"] = {HOSTILE: HOSTILE}
    record = store.read_verdict()
    record |= {"target": HOSTILE, "seed": HOSTILE, "unknown_because": [HOSTILE]}
    record |= {"environment": run["environment"], "replay": HOSTILE}
    record["coverage"] = {"obliged": 2, "hit": 0, "missed": run["obligations"]["obliged"]}
    found = record["properties"]["P5"]
    found["witnesses"][0]["story"] = HOSTILE
    found["witnesses"][0]["lines"][0]["text"] = HOSTILE
    found["witnesses"].append({"job": HOSTILE, "story": HOSTILE, "lines": []})
    for name, value in (("run.json", run), ("verdict.json", record)):
        (store.path / name).write_text(json.dumps(value))
    with open(store.nemesis, "a", encoding="utf-8") as file:
        fault = {"fault": HOSTILE, "process": HOSTILE, "phase": f"{HOSTILE}.begin", "pid": 101}
        file.write(json.dumps({"t": ns(707), "hit": True} | fault) + "\n")
    return store


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    text = write_report(hostile(tmp_path / "store").path).read_text(encoding="utf-8")
    page = Page(text)

    assert [tag for tag, _ in page.tags if tag in ("script", "img")] == ["script"] * 3
    assert not [name for _, attributes in page.tags for name in attributes if name[:2] == "on"]
    assert "<script>alert(1)</script><img src=x onerror=alert(1)>" in page.text
    assert "{{7*7}}" in page.text
    assert "\\u202e\\x00\\ud800" in page.text
    assert "\u202e" not in text
    assert "\x00" not in text


def huge(path: Path) -> Store:
    """More kills, witnesses, lines and text than any page can hold."""
    store = zombie(path, refused=False)
    long = "&" * 2_000  # Each letter becomes five in the page.
    lines = [{"file": "history/w1.1.jsonl", "line": n, "text": long} for n in range(1, 21)]
    witness = {"job": "1", "story": long, "lines": lines}
    record = store.read_verdict()
    record["coverage"] = {"obliged": 900, "hit": 0, "missed": [f"{long}{n}" for n in range(900)]}
    record["unknown_because"] = [f"obligation missed: {n}" for n in range(900)]
    for found in record["properties"].values():
        found |= {"verdict": "violated", "violations": 10, "witnesses": [witness] * 10}
    (store.path / "verdict.json").write_text(json.dumps(record))
    with open(store.history_file("w9.1"), "w", encoding="utf-8") as file:
        for number in range(1, 61):
            ack = {"t": ns(800 + number), "pid": 999, "process": "w9.1", "n": number, "f": "ack"}
            asked = ack | {"type": "invoke", "job": 1, "fence": 1}
            answer = ack | {"type": "fail", "value": {"error": long}}
            file.write(f"{json.dumps(asked)}\n{json.dumps(answer)}\n")
    with open(store.nemesis, "a", encoding="utf-8") as file:
        for number in range(20_000):
            fault = {"t": ns(number / 30), "fault": "kill", "pid": 5_000 + number, "hit": True}
            fault |= {"process": f"w{number % 40}.{number}", "phase": "claim.committed"}
            file.write(json.dumps(fault) + "\n")
    return store


def test_a_huge_run_stays_below_two_mebibytes(tmp_path: Path) -> None:
    report = write_report(huge(tmp_path / "store").path)

    assert report.stat().st_size < BYTES_MAX
    assert f"At most {MARKS_MAX:,} marks of a kind are drawn" in Page(report.read_text()).text


def test_a_run_without_faults_says_so_and_draws_what_there_is(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "store")
    scene.call("p1.1", "enqueue", 0, 2, job=1, asked={"value": {"id": "j1"}})
    scene.exit("p1.1", 10)
    page = Page(render(scene.finish({"P1": "process"})))

    assert "No worker was killed while it held a lease" in page.text
    assert "No fault was made at a named phase." in page.text
    assert "This run declared none" in page.text
    assert "plot-recovery" not in page.ids()


def test_an_empty_store_still_has_a_report(tmp_path: Path) -> None:
    page = Page(render(Scene(tmp_path / "store").finish({"P1": "process"})))

    assert "Nothing was recorded that has a time." in page.text


def test_a_run_that_was_not_judged_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"verdict\.json"):
        write_report(Store.create(tmp_path / "store").path)


def test_markdown_takes_the_page_along(passed: Store, unknown: Store, tmp_path: Path) -> None:
    out = write_markdown([passed.path, unknown.path], tmp_path / "chaos-proc.md")
    text = out.read_text(encoding="utf-8")

    assert (tmp_path / "chaos-proc.html").read_text(encoding="utf-8") == render(passed)
    assert "2 runs, one seed each: 1 without a violation" in text
    assert "jobs ended per second; a column is 0.1 s" in text
    assert " pauses |1" in text
    assert write_markdown(passed.path, out).read_text(encoding="utf-8") != text


def test_markdown_of_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one store"):
        write_markdown([], tmp_path / "x.md")


# --- The story of the witness.


def test_the_story_runs_in_the_order_of_time_with_a_lane_for_each_process(violated: Store) -> None:
    timeline = lanes_of(violated)

    assert timeline.lanes == ("p1.1", "w1.1", "w2.1", QUEUE_LANE)
    assert [row.event.what for row in timeline.rows] == [
        "committed: nothing → available",
        "p1.1 enqueues the job",
        "committed: available → leased, token 1",
        "w1.1 claims the job with token 1",
        "w1.1 starts the handler, attempt 1",
        "w1.1 is stopped (SIGSTOP) at handler.start",
        "the lease of w1.1 has run out (500 ms)",
        "committed: leased → available",
        "committed: available → leased, token 2",
        "w2.1 claims the job with token 2",
        "w2.1 starts the handler, attempt 2",
        "w2.1 makes the effect",
        "w2.1 ends the handler: ok",
        "committed: leased → succeeded",
        "w2.1 acks the job with token 2",
        "w1.1 goes on (SIGCONT)",
        "w1.1 acks the job with token 1",
    ]


def test_the_lines_that_prove_it_are_marked_in_the_story(violated: Store) -> None:
    cited = [row.event.what for row in lanes_of(violated).rows if row.cited]

    assert "w1.1 acks the job with token 1" in cited
    assert "p1.1 enqueues the job" not in cited


def test_a_lane_shows_who_holds_the_lease_and_who_is_stopped(violated: Store) -> None:
    timeline = lanes_of(violated)

    assert look(timeline, "w1.1", "w1.1 starts the handler") == "holds"
    assert look(timeline, "w1.1", "w1.1 is stopped") == "stopped"
    assert look(timeline, "w1.1", "w2.1 claims") == "stopped"
    assert look(timeline, "w1.1", "w1.1 goes on") == "lives"
    assert look(timeline, "w2.1", "w2.1 starts the handler") == "holds"
    assert look(timeline, "w2.1", "w2.1 acks") == "lives"
    assert look(timeline, "w2.1", "w1.1 goes on") == ""


def test_a_process_goes_on_before_it_does_anything_though_it_is_seen_later(tmp_path: Path) -> None:
    store = zombie(tmp_path / "store", refused=False, seen_awake=707)

    told = [row.event.what for row in lanes_of(store).rows]

    assert told[-2:] == ["w1.1 goes on (SIGCONT)", "w1.1 acks the job with token 1"]


def test_a_refused_ack_reads_as_refused(tmp_path: Path) -> None:
    store = zombie(tmp_path / "store")
    witness = {"job": "1", "lines": []}

    timeline = timeline_of(Evidence(store), witness)

    assert timeline is not None
    last = timeline.rows[-1].event
    assert last.what == "w1.1 acks the job with token 1: refused (LeaseLost: gone)"
    assert last.bad


def killed(path: Path, *, done: float = 302) -> Store:
    """Worker 1 is killed inside its ack; worker 2 takes over."""
    scene = Scene(path)
    scene.call("p1.1", "enqueue", 0, 2, job=1, asked={"value": {"id": "j1", "delay_ms": 100}})
    scene.change(1, None, "scheduled")
    scene.call("w1.1", "claim", 110, 112, job=1, fence=1)
    scene.change(111, "scheduled", "leased", 1)
    scene.call("w1.1", "ack", 120, None, asked={"job": 1, "fence": 1})
    scene.fault("kill", 130, pid=101, process="w1.1", phase="ack.locked")
    scene.fault("pause", 600, 610, pid=101, process="w1.1", phase="claim.begin")
    scene.call("w2.1", "claim", 150, 152, job=1, fence=2)
    scene.change(151, "leased", "leased", 2)
    scene.call("w2.1", "ack", done - 1, done + 1, asked={"job": 1, "fence": 2})
    scene.change(done, "leased", "succeeded", 2)
    scene.recovery(130, 152, idle=True)
    scene.recovery(130, 230, idle=False)
    scene.recovery(140, None, idle=True)
    for process in ("p1.1", "w2.1"):
        scene.exit(process, done + 98)
    return scene.finish({"P1": "process"})


def test_a_killed_holder_ends_its_lane_and_has_no_deadline(tmp_path: Path) -> None:
    store = killed(tmp_path / "store", done=900)

    timeline = timeline_of(Evidence(store), {"job": "1", "lines": []})

    assert timeline is not None
    told = [row.event.what for row in timeline.rows]
    assert "w1.1 acks the job with token 1: no answer is on record" in told
    assert "w1.1 is killed (SIGKILL) at ack.locked" in told
    assert look(timeline, "w1.1", "w2.1 claims") == ""
    assert [what for what in told if "run out" in what] == [
        "the lease of w2.1 has run out (500 ms)"
    ]


def test_a_lease_that_ran_out_inside_the_claim_is_never_shown_as_held(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "store")
    scene.call("p1.1", "enqueue", 0, 2, job=1, asked={"value": {"id": "j1"}})
    scene.change(1, None, "available")
    scene.call("w1.1", "claim", 10, 900, job=1, fence=1)
    scene.change(11, "available", "leased", 1)
    scene.effect("w1.1", "start", 901, 1)
    scene.call("w1.1", "ack", 902, 903, asked={"job": 1, "fence": 1}, type="fail")

    timeline = timeline_of(Evidence(scene.finish({"P1": "process"})), {"job": "1", "lines": []})

    assert timeline is not None
    assert "the lease of w1.1 had run out before this" in [r.event.what for r in timeline.rows]
    assert look(timeline, "w1.1", "w1.1 starts the handler") == "lives"


def test_a_fault_before_the_process_met_the_job_is_no_part_of_its_story(tmp_path: Path) -> None:
    store = zombie(tmp_path / "store")
    with open(store.nemesis, "a", encoding="utf-8") as file:
        for process, at in (("w2.1", 100), ("p1.1", 300)):
            fault = {"fault": "pause", "pid": PIDS[process], "process": process, "hit": True}
            file.write(json.dumps({"t": ns(at), "t_end": ns(at + 50)} | fault) + "\n")

    timeline = timeline_of(Evidence(store), {"job": "1", "lines": []})

    assert timeline is not None
    stopped = [row.event.lane for row in timeline.rows if "is stopped" in row.event.what]
    assert stopped == ["w1.1"]


def test_a_stop_around_the_handler_of_a_worker_without_a_history_is_part_of_the_story(
    tmp_path: Path,
) -> None:
    """It took the job, was stopped behind its handler past its lease, and came back too late."""
    scene = Scene(tmp_path / "store")
    scene.call("p1.1", "enqueue", 0, 2, job=1, asked={"value": {"id": "j1", "script": ["ok"]}})
    scene.change(1, None, "available")
    scene.change(11, "available", "leased", 1)
    scene.effect("w1.1", "start", 13, 1)
    scene.effect("w1.1", "end", 14, 1, outcome="raise")
    scene.fault("pause", 20, 700, pid=101, process="w1.1", phase="handler.end")
    scene.change(511, "leased", "leased", 2)
    scene.effect("w2.1", "start", 513, 2)
    scene.effect("w2.1", "end", 514, 2, outcome="ok")
    scene.change(515, "leased", "succeeded", 2)
    scene.change(701, "succeeded", "available", 2)
    scene.fault("pause", 800, 900, pid=101, process="w1.1", phase="handler.end")
    store = scene.finish({"P7": True})

    timeline = timeline_of(Evidence(store), {"job": "1", "lines": []})

    assert timeline is not None
    assert timeline.lanes == ("p1.1", "pid 101", "pid 102", "queue")
    told = [row.event.what for row in timeline.rows if row.event.lane == "pid 101"]
    assert told[2:] == [
        "pid 101 is stopped (SIGSTOP) at handler.end",
        "pid 101 goes on (SIGCONT)",
    ]
    assert look(timeline, "pid 101", "pid 102 starts") == "stopped"


def test_a_long_story_keeps_its_cited_lines_and_counts_the_rest(violated: Store) -> None:
    witness = violated.read_verdict()["properties"]["P5"]["witnesses"][0]

    timeline = timeline_of(Evidence(violated), witness, events_max=6)

    assert timeline is not None
    assert len(timeline.rows) == 6
    assert timeline.left_out == 11
    assert sum(row.left_out for row in timeline.rows) == 11
    assert "w1.1 acks the job with token 1" in [row.event.what for row in timeline.rows]


def test_a_pause_between_two_events_is_told(violated: Store) -> None:
    rows = lanes_of(violated).rows
    gap = next(row for row in rows if "has run out" in row.event.what).gap_ms

    assert gap == pytest.approx(491, abs=1)
    assert next(row for row in rows if "w2.1 starts" in row.event.what).gap_ms is None


def test_of_many_lanes_those_of_the_cited_lines_stay(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "store")
    names = [f"w{number}.9" for number in range(1, LANES_MAX + 6)]
    PIDS.update({name: 900 + index for index, name in enumerate(names)})
    for index, name in enumerate(names):
        scene.call(name, "claim", 10 * index, 10 * index + 1, job=1, fence=index + 1)
    store = scene.finish({"P1": "process"})
    line = {"file": f"history/{names[-1]}.jsonl", "line": 2, "text": ""}

    timeline = timeline_of(Evidence(store), {"job": "1", "lines": [line]})

    assert timeline is not None
    assert len(timeline.lanes) == LANES_MAX
    assert names[-1] in timeline.lanes
    assert timeline.left_out == 5


def test_a_witness_without_a_known_job_has_no_picture(violated: Store) -> None:
    evidence = Evidence(violated)

    assert timeline_of(evidence, {"job": None, "lines": []}) is None
    assert timeline_of(evidence, {"job": "99", "lines": []}) is None


def test_an_id_that_is_used_again_does_not_move_the_commits(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "store")
    for number, at in enumerate((0, 5_000)):
        asked = {"value": {"id": f"j{number}"}}
        scene.call("p1.1", "enqueue", at, at + 2, job=1, asked=asked)
        scene.change(at + 1, None, "available")
        scene.change(at + 9, "available", "dead")
    scene.call("p1.1", "enqueue", 6_000, 6_002, job=2, asked={"value": {"id": "j9"}})
    scene.change(6_001, None, "available", job=2)
    evidence = Evidence(scene.finish({"P1": "process"}))

    assert not evidence.clock_stepped
    assert timeline_of(evidence, {"job": "2", "lines": []}) is not None


# --- The numbers.


def test_latency_counts_from_the_moment_at_which_a_delayed_job_was_due(tmp_path: Path) -> None:
    figures = figures_of(Evidence(killed(tmp_path / "store")))

    assert figures.jobs.values == pytest.approx((200,), abs=2)
    assert figures.claims.values == (2.0, 2.0)


def test_recovery_with_an_idle_peer_stands_apart(tmp_path: Path) -> None:
    figures = figures_of(Evidence(killed(tmp_path / "store")))

    assert figures.recovery_idle.values == (22.0,)
    assert figures.recovery_busy.values == (100.0,)
    assert figures.never_reclaimed == 1


def test_the_clock_of_recovery_stands_still_while_nobody_can_write(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "store")
    scene.fault("stall", 120, 180, cause="lock")
    scene.recovery(100, 200, idle=True)
    figures = figures_of(Evidence(scene.finish({"P1": "process"})))

    assert figures.recovery_idle.values == (40.0,)


def test_a_map_of_ones_is_no_hot_spot(unknown: Store) -> None:
    _, pauses = figures_of(Evidence(unknown)).heats
    (_, once), *_ = pauses.others

    assert 0.2 < pauses.shade(once) < 0.4


def test_a_p99_of_few_values_is_refused(tmp_path: Path) -> None:
    figures = figures_of(Evidence(killed(tmp_path / "store")))

    assert figures.recovery_idle.p50 == 22.0
    assert figures.recovery_idle.p99 is None
    assert quantile([float(n) for n in range(1, 101)], 0.99) == 99.0


def test_every_ended_job_stands_in_one_interval(passed: Store) -> None:
    figures = figures_of(Evidence(passed))

    assert figures.seconds == pytest.approx(0.72)
    assert [b.ended for b in figures.bins] == [0, 0, 0, 0, 0, 1, 0, 0]
    assert [b.enqueued for b in figures.bins] == [1, 0, 0, 0, 0, 0, 0, 0]
    assert sum(b.pauses for b in figures.bins) == 1


def test_a_pause_whose_end_is_a_line_of_its_own_has_a_length(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "store")
    scene.fault("pause", 100, pid=7)
    scene.fault("cont", 90, pid=7)
    scene.fault("cont", 350, pid=7)
    figures = figures_of(Evidence(scene.finish({"P1": "process"})))

    (pause,) = figures.faults
    assert pause.end is not None
    assert pause.end - pause.start == pytest.approx(0.25)


def test_an_obliged_cell_without_a_hit_is_missed(unknown: Store) -> None:
    kills, pauses = figures_of(Evidence(unknown)).heats

    assert (kills.fault, pauses.fault) == ("kill", "pause")
    assert [cell and cell.missed for cell in kills.rows[0][1]] == [True]
    assert [(phase, cell.hits, cell.missed) for phase, cell in pauses.others] == [
        ("handler.start", 1, False)
    ]


def test_a_fault_that_was_aimed_at_nothing_is_told_as_a_list(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "store")
    scene.fault("term", 10, pid=7, process="w1.1", phase="claim.begin")
    scene.fault("term", 20, pid=8, process="w2.1", phase="")
    (terms,) = figures_of(Evidence(scene.finish({"P1": "process"}))).heats

    assert terms.rows == ()
    assert [(phase, cell.hits) for phase, cell in terms.others] == [("claim.begin", 1)]
    assert terms.elsewhere == 1


def test_marks_are_thinned_evenly_with_the_first_and_the_last() -> None:
    few = thinned(range(10_001), 11)

    assert list(few) == list(range(0, 10_001, 1_000))
    assert thinned([1, 2], 11) == [1, 2]


# --- The pictures.


def models(value: Any) -> Iterator[str]:
    """Yield the id of each model, in the order of the JSON."""
    if isinstance(value, dict):
        if isinstance(value.get("id"), str):
            yield value["id"]
        for inner in value.values():
            yield from models(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from models(inner)


def test_every_picture_has_its_root_in_the_document(tmp_path: Path) -> None:
    figures = figures_of(Evidence(killed(tmp_path / "store")))
    drawn = json.loads(report_plots.pictures(figures, 5_000.0))

    assert set(drawn["roots"]) == {
        "plot-throughput", "plot-latency", "plot-faults", "plot-recovery",
    }  # fmt: skip
    assert list(drawn["roots"].values()) == [root["id"] for root in drawn["document"]["roots"]]
    assert all(name.startswith("m") for name in models(drawn["document"]))


def test_a_picture_without_data_is_left_out(tmp_path: Path) -> None:
    figures = figures_of(Evidence(Scene(tmp_path / "store").finish({"P1": "process"})))

    assert json.loads(report_plots.pictures(figures, None)) == {"document": None, "roots": {}}


def test_with_too_many_processes_a_lane_is_a_kind_of_fault(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "store")
    for number in range(60):
        scene.fault("kill", number, pid=number, process=f"w{number}.1", phase="claim.begin")
    scene.fault("lock", 10, 20)
    text = report_plots.pictures(figures_of(Evidence(scene.finish({"P1": "process"}))), None)

    assert '"w59"' not in text
    assert '"kill"' in text


def test_pictures_cannot_end_the_script_around_them(tmp_path: Path) -> None:
    figures = figures_of(Evidence(hostile(tmp_path / "store")))

    assert "<" not in report_plots.pictures(figures, None)
