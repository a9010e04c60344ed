"""What the commands and the reader say of runs."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from killproof import Queue, workflow_view
from killproof.explain import explain
from killproof.handlers import Handlers
from killproof.heartbeat import Tenure
from killproof.worker import Context
from killproof.workflow import Step, Workflow, Workflows

Run = Callable[..., tuple[int, str, str]]


def diamond() -> Workflow:
    flow = Workflow("orders")
    flow.add("reserve", kind="reserve", needs=[])
    flow.add("charge", kind="charge", needs=["reserve"], compensate="refund")
    flow.add("invoice", kind="invoice", needs=["reserve"])
    flow.add("ship", kind="ship", needs=["charge", "invoice"])
    return flow


def work(queue: Queue, *kinds: str) -> None:
    for kind in kinds:
        lease = queue.claim([kind])
        assert lease is not None
        queue.ack(lease, {"of": kind})


def fail(queue: Queue, kind: str) -> None:
    lease = queue.claim([kind])
    assert lease is not None
    queue.nack(lease, "no parcel fits", permanent=True)


def test_the_commands_lead_from_a_failure_to_its_end(run: Run, place: Path) -> None:
    """Covers S2.11, S2.35, S2.36."""
    with Queue(place / "queue.db", durability="process") as queue:
        run_id = Workflows(queue).start(diamond(), key="order-17")
        Workflows(queue).start(diamond(), key="order-18")
        work(queue, "reserve", "reserve")
        fail(queue, "invoice")
        work(queue, "charge")
    assert run_id == 1

    code, out, _ = run("workflow", "list")
    assert code == 0
    assert "order-17   compensating     2/4" in out
    assert "order-18   running          1/4" in out
    code, out, _ = run("workflow", "show", "1")
    assert out.startswith("run 1 of orders with key order-17 is compensating: 2 of 4 steps")
    assert "✗   invoice" in out
    assert "no parcel fits" in out
    assert "with what it needs" in out
    assert "○ undo charge" in out
    with Queue(place / "queue.db") as queue:
        fail(queue, "refund")
    assert (
        "go on with the compensation: killproof workflow replay 1"
        in run("workflow", "show", "1")[1]
    )
    assert run("workflow", "replay", "1")[1] == ("run 1 is compensating: replayed 1 step (job 9)\n")
    assert run("workflow", "cancel", "2", "--keep")[1] == "run 2 is cancelled\n"
    code, _, err = run("workflow", "cancel", "1")
    assert (code, "run 1 is being compensated" in err) == (64, True)
    assert "1 cancelled, 1 compensating" in run("workflow", "report")[1]
    failed = json.loads(run("explain", "3", "--json")[1])["reasons"][0]
    assert (failed["rule"], failed["remedy"]) == ("ended", None)  # A replay would be refused.
    assert run("replay", "3")[0] == 64


def test_each_command_speaks_json(run: Run, place: Path) -> None:
    with Queue(place / "queue.db", durability="process") as queue:
        Workflows(queue).start(diamond(), key="order-17")
        work(queue, "reserve", "charge", "invoice", "ship")

    (listed,) = json.loads(run("workflow", "list", "--json")[1])
    assert (listed["state"], listed["succeeded"], listed["total"]) == ("succeeded", 4, 4)
    shown = json.loads(run("workflow", "show", "1", "--json")[1])
    assert [step["name"] for step in shown["steps"]] == ["reserve", "charge", "invoice", "ship"]
    assert shown["steps"][3]["needs"] == [2, 3]
    assert shown["steps"][0]["result"] == {"of": "reserve"}
    (report,) = json.loads(run("workflow", "report", "--json")[1])
    assert report["counts"] == {"succeeded": 1}
    assert [step["name"] for step in report["steps"]] == ["reserve", "charge", "invoice", "ship"]
    assert json.loads(run("workflow", "list", "--state", "failed", "--json")[1]) == []
    code, _, err = run("workflow", "cancel", "1", "--json")
    assert (code, err) == (64, "killproof: run 1 is succeeded: nothing was changed\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show", "9"), "there is no run 9 in"),
        (("cancel", "9"), "there is no run 9 in"),
        (("list", "--state", "done"), "state 'done' is unknown: use one of running, compensating"),
        (("report", "--window", "soon"), "--window 'soon' is no time: write"),
        (("forget", "0"), "id 0 must be an integer"),
    ],
)
def test_wrong_input_is_one_line_that_names_it(
    run: Run, place: Path, arguments: tuple[str, ...], says: str
) -> None:
    Queue(place / "queue.db", durability="process").close()

    code, out, err = run("workflow", *arguments)
    assert (code, out) == (64, "")
    assert says in err
    assert err.count("\n") == 1


def test_a_file_without_runs_has_none_to_show(run: Run, place: Path) -> None:
    Queue(place / "queue.db", durability="process").close()

    assert run("workflow", "list")[1] == "no runs\n"
    assert run("workflow", "report")[1] == "no runs\n"
    assert run("workflow", "forget", "1")[1] == "forgot 0 steps of job 1\n"


def test_explain_names_what_a_step_waits_for(queue: Queue) -> None:
    Workflows(queue).start(diamond())
    work(queue, "reserve", "charge")

    (reason,) = explain(queue, 4).keeping
    assert reason.text == (
        "it is step 'ship' of run 1 of 'orders', which is running, "
        "and waits for 'invoice' (job 3, available)"
    )
    assert reason.remedy == "killproof workflow show 1"
    assert explain(queue, 3).reasons[0].text.startswith("it is step 'invoice' of run 1")


def test_explain_says_how_what_was_cancelled_with_its_need_comes_back(queue: Queue) -> None:
    flow = Workflow("flow")
    flow.add("a", kind="a")
    flow.add("b", kind="b")
    Workflows(queue).start(flow)
    fail(queue, "a")

    ended, blocked = explain(queue, 2).keeping
    assert ended.remedy is None  # A replay of it would be refused.
    assert blocked.text.endswith("which is failed, and waits for 'a' (job 1, dead)")
    assert blocked.remedy == "killproof workflow replay 1"


def test_a_long_fan_out_is_one_line_and_those_that_need_a_look(run: Run, place: Path) -> None:
    handlers = Handlers()
    flow = Workflow("album", handlers)
    flow.step(name="find")(lambda step: list(range(40)))
    flow.step(name="resize", each="find")(lambda step: None)
    flow.step(name="publish")(lambda step: None)
    with Queue(place / "queue.db", durability="process") as queue:
        Workflows(queue).start(flow)
        lease = queue.claim(["album.find"])
        assert lease is not None
        clock = queue.host.clock
        tenure = Tenure(lease, now_ns=clock.monotonic_ns())
        handlers["album.find"].function(Context(queue, tenure, clock))
        work(queue, "album.resize")
        fail(queue, "album.resize")

    lines = run("workflow", "show", "1")[1].splitlines()
    assert len(lines) < 12
    assert any(
        "resize x40" in line and "1 succeeded, 1 dead, 38 available" in line for line in lines
    )
    assert any("✗   resize 2" in line for line in lines)


def test_a_running_step_shows_how_far_it_is(queue: Queue, run: Run, place: Path) -> None:
    """Covers S2.8."""
    flow = Workflow("flow")

    @flow.step()
    def load(step: Step) -> None:
        step.progress(40, 100, "rows")

    Workflows(queue).start(flow)
    lease = queue.claim()
    assert lease is not None
    tenure = Tenure(lease, now_ns=queue.host.clock.monotonic_ns())
    flow.handlers["flow.load"].function(Context(queue, tenure, queue.host.clock))

    assert "attempt 1 of 5, 40 of 100: rows" in run("workflow", "show", "1")[1]
    assert "progress 40 of 100: rows, told" in run("show", "1")[1]
    assert json.loads(run("show", "1", "--json")[1])["progress"]["done"] == 40


def test_doctor_and_metrics_count_the_runs_that_failed(queue: Queue, run: Run) -> None:
    """Covers S2.35, S2.36."""
    flow = Workflow("flow")
    flow.add("a", kind="a")
    Workflows(queue).start(flow)
    assert "no run has failed" in run("doctor")[1]
    fail(queue, "a")

    assert "1 run failed" in run("doctor")[1]
    assert 'killproof_workflow_runs{workflow="flow",state="failed"} 1' in run("metrics")[1]


def test_what_does_not_agree_in_the_tables_is_told(queue: Queue) -> None:
    Workflows(queue).start(diamond())
    assert workflow_view.faults(queue) == []

    with queue.transaction() as tx:
        tx.change("UPDATE workflow_step SET unmet = 0 WHERE name = 'ship'")
        tx.change("UPDATE workflow_run SET succeeded = 3")
    assert workflow_view.faults(queue) == [
        "step 4 counts other unmet needs than it has",
        "step 4 is blocked and waits for nothing",
        "run 1 counts other steps than it has",
    ]
