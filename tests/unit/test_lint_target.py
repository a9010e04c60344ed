"""A target's mistakes are told before a run is spent on them; a new target has none."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import killproof_evidence
from killproof_chaos import skeleton, targets
from killproof_chaos.cli import app
from killproof_chaos.contract_guide import PARAMETERS, PROMISES, contract_text
from killproof_chaos.lint import contract_rules, trial_rules
from killproof_chaos.lint.remarks import Remark
from killproof_chaos.lint.trial import Trial
from killproof_chaos.skeleton import Kind
from killproof_evidence.command import CommandTarget
from killproof_evidence.contract import PROMISE_NAMES, Contract
from killproof_evidence.judge import PROPERTIES
from killproof_evidence.store import Store
from killproof_evidence.target import TargetNotFound, level

HEAD = 'database = "queue.db"\n[commands]\nclient = "c"\nworker = "w"\nsnapshot = "s"\n'
AUDIT = '[audit]\ntable = "job"\nid = "id"\nstate = "state"\nattempts = "n"\npayload = "p"\n'
EDGES = '[edges]\nstart = ["available"]\navailable = ["leased"]\nleased = ["succeeded", "dead"]\n'


def target_of(place: Path, promises: str, parameters: str = "", rest: str = "") -> CommandTarget:
    """A target of which only the contract is looked at."""
    file = place / "target.toml"
    parts = (HEAD, "[promises]", promises, "[parameters]", parameters, rest)
    file.write_text("\n".join(parts), encoding="utf-8")
    return CommandTarget(file)


def texts(remarks: list[Remark], weight: str = "problem") -> list[str]:
    return [remark.text for remark in remarks if remark.weight == weight]


@pytest.mark.parametrize(
    ("promises", "parameters", "says"),
    [
        ("", "", "no promise is made"),
        ("P1 = true", "", 'P1 = True is no promise: say "power" or "process"'),
        ("P2 = 1", "", "P2 = 1 is no promise: say true"),
        ("P5 = true", "", "nothing shows it without a worker that records"),
        ("P7 = true", "", "P7 is promised, and [edges] is empty"),
        ("P7 = true", "", "nothing shows it without an audit mapping"),
        ("P8 = true", "options = []", "the parameter max_attempts is missing"),
        ("P9 = true", "", "the parameter retry is missing"),
        ("P10 = true", "options = []", "parameters.options does not have delay"),
        ("P12 = true", 'options = ["delay"]', "parameters.options does not have key"),
        ("P18 = true", "", "the parameter recovery_ms is missing"),
        ("P21 = true", "", "the parameter grace_ms is missing"),
        ("P22 = true", "", "does not announce the capability limits"),
        (
            "P2 = true",
            "lease = 3",
            "the parameter lease is unknown to every checker: per",
        ),
        ("P2 = true", "lease_ms = -1", "lease_ms = -1 must be a number above 0"),
        ("P2 = true", 'retry = "soon"', "retry = 'soon' is no policy: immediate"),
        ("P2 = true", 'crash_first = "soon"', "crash_first = 'soon' must be immediate or policy"),
        ("P2 = true", 'options = ["colour"]', "options has colour, and a run asks for priority"),
        ('P6 = "at-most-once"\nP17 = true', "", "contradict each other"),
    ],
)
def test_a_contract_that_cannot_be_judged_is_told_what_it_lacks(
    tmp_path: Path, promises: str, parameters: str, says: str
) -> None:
    target = target_of(tmp_path, promises, parameters)
    assert any(says in text for text in texts(list(contract_rules.remarks(target))))


@pytest.mark.parametrize(
    ("promises", "parameters", "says"),
    [
        ('P1 = "powr"', "", 'P1 = \'powr\' is no promise: say "power" or "process"'),
        ('P2 = "yes"', "", "P2 = 'yes' is no promise: say true"),
        ("P2 = true", 'busy_ms = "x"', "busy_ms = 'x' must be a number above 0"),
        ("P2 = true", "lease_ms = nan", "lease_ms = nan must be a number above 0"),
        ("P2 = true", "max_attempts = 2.5", "max_attempts = 2.5 must be a whole number"),
        ("P2 = true", "limits = 3", "limits = 3 must be a table"),
        ("P2 = true", "options = [[]]", "options = [[]] must be a list of names"),
    ],
)
def test_a_contract_with_a_word_or_number_that_is_none_is_linted_and_never_judged_on(
    tmp_path: Path, promises: str, parameters: str, says: str
) -> None:
    target = target_of(tmp_path, promises, parameters)
    assert says in texts(list(contract_rules.remarks(target)))
    file = str(tmp_path / "target.toml")
    assert targets.find(file).name == target.name
    with pytest.raises(TargetNotFound, match=re.escape(says)):
        targets.load(file)


def test_an_edge_from_a_state_that_nobody_reaches_is_told(tmp_path: Path) -> None:
    odd = EDGES + 'held = ["available"]\n'
    target = target_of(tmp_path, "P2 = true", "options = []", odd)
    assert texts(list(contract_rules.remarks(target))) == [
        "no edge leads to held, and edges lead from there"
    ]


def test_a_contract_that_can_be_judged_is_told_nothing(tmp_path: Path) -> None:
    target = target_of(tmp_path, 'P1 = "power"\nP2 = true\nP6 = "key"', "options = []", EDGES)
    assert list(contract_rules.remarks(target)) == []


@pytest.mark.parametrize(
    ("lease", "says"),
    [("lease_ms = 500", "fair only if the worker extends it"), ("", "then no time ends a lease")],
)
def test_a_lease_that_is_short_or_endless_is_a_note_alone(
    tmp_path: Path, lease: str, says: str
) -> None:
    target = target_of(tmp_path, "P4 = true", f"options = []\n{lease}")
    found = list(contract_rules.remarks(target))
    assert texts(found) == []
    assert says in texts(found, "note")[0]


def shown(place: Path, facts: Mapping[str, Any], rest: str = EDGES, **more: Any) -> list[str]:
    """What the rules say of a trial that never took place."""
    store = Store.create(place / "store")
    target = target_of(place, "P2 = true", "options = []", rest)
    trial = replace(Trial(facts=dict(facts)), **more)
    return texts(list(trial_rules.remarks(trial, target, store)))


def row(**values: Any) -> dict[str, Any]:
    whole = {"id": 1, "state": "succeeded", "name": "j0", "has_payload": True, "attempts": 1}
    return whole | values


WORK = {"seconds": 0.1, "ended_early": None}
STOP = {"seconds": 0.1, "code": 0}


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"enqueue": {"j0": {"no_id": "None"}}}, "enqueue returned None, which is no id"),
        ({"enqueue": {"j0": {"refused": "Definite: full"}}}, "a plain enqueue failed: Definite"),
        ({"enqueue": {"key": {"raised": "E: no"}}}, "options have key, and enqueue does not"),
        ({"enqueue": {"j0": {"id": 1}, "j1": {"id": 1}}}, "2 jobs got 1 different ids"),
        ({"cancel": {"id": 1, "cancelled": False}}, "cancel said false of a job that waits"),
        ({"replay": {"replay_raised": "Definite: no"}}, "the client's replay raised Definite: no"),
        ({"replay": {"replayed": True}}, "replay said true of a job that was not dead"),
        ({"work": WORK | {"ended_early": 3}}, "the worker ended with 3, before SIGTERM"),
        ({"work": WORK, "enqueue": {"j0": {"id": 1}}}, "left a line in $KILLPROOF_EFFECTS"),
        ({"work": WORK, "stop": STOP | {"code": None}}, "did not end within 0 s of SIGTERM"),
        ({"snapshot": {"rows": [row(state="done")]}}, "the state 'done' is unknown: use blocked"),
        ({"snapshot": {"rows": [row(state="expired")]}}, "no edge of the contract leads there"),
        ({"snapshot": {"rows": [row(name=None)]}}, "a payload has no `id`"),
        (
            {"snapshot": {"rows": []}, "enqueue": {"j0": {"id": 7}}},
            "1 of 1 jobs are not in it under the id that enqueue returned (7)",
        ),
        (
            {"snapshot": {"rows": [row(state="leased")]}, "work": WORK, "stop": STOP},
            "job 1 is still leased at the end",
        ),
    ],
)
def test_what_a_trial_shows_to_be_wrong_is_told_with_the_remedy(
    tmp_path: Path, facts: dict[str, Any], says: str
) -> None:
    assert any(says in text for text in shown(tmp_path, facts))


def test_a_step_that_never_ended_says_what_it_should_have_done(tmp_path: Path) -> None:
    told = shown(tmp_path, {}, stopped_in="snapshot", failure="KeyError: 'x'")
    assert told == ["snapshot failed: KeyError: 'x'; snapshot must yield every job as a JobRow"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ([], "no change of the table was seen"),
        ([{"job": 1, "old": None, "new": "todo"}], "state 'todo' is not in the mapping's `states`"),
        ([{"job": 1, "old": None, "new": "dead"}], "went from nothing to dead, which no edge"),
        ([{"job": 1, "old": None, "new": "available"}], "the column p holds no JSON with the `id`"),
    ],
)
def test_an_audit_that_does_not_fit_the_table_is_told(
    tmp_path: Path, changes: list[dict[str, Any]], says: str
) -> None:
    store = Store.create(tmp_path / "store")
    log = store.writer(store.audit)
    for change in changes:
        log.append(change)
    log.close()
    target = target_of(tmp_path, "P7 = true", "options = []", EDGES + AUDIT)
    told = texts(list(trial_rules.remarks(Trial(facts={"changes": {}}), target, store)))
    assert any(says in text for text in told)


def test_the_guide_has_every_promise_and_every_parameter_that_a_checker_reads() -> None:
    assert [promise.number for promise in PROMISES] == list(PROMISE_NAMES)
    assert len(PROMISES) == len(PROPERTIES)
    sources = Path(killproof_evidence.__file__).parent.rglob("*.py")
    read = {
        name
        for path in sources
        for name in re.findall(r'parameters\.get\("(\w+)"', path.read_text(encoding="utf-8"))
    }
    assert read - {parameter.name for parameter in PARAMETERS} == set()


def test_the_commented_contract_says_the_same_as_the_contract() -> None:
    text = contract_text(skeleton.PROMISES, skeleton.PARAMETERS, skeleton.EDGES)
    assert Contract.parse(text) == Contract(
        promises=skeleton.PROMISES, parameters=skeleton.PARAMETERS, edges=skeleton.EDGES
    )
    everything = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)
    assert set(Contract.parse(everything).promises) == set(PROMISE_NAMES)
    assert set(Contract.parse(everything).parameters) == {each.name for each in PARAMETERS}


@pytest.mark.parametrize("kind", list(Kind))
def test_a_new_target_of_each_kind_loads_and_its_contract_can_be_judged(
    tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    from killproof_chaos import targets

    monkeypatch.chdir(tmp_path)
    written = skeleton.write("mail-queue", kind, tmp_path)
    target = targets.load(str(written[0]))
    assert (target.name, level(target)) == ("mail-queue", 1)
    assert list(contract_rules.remarks(target)) == []
    assert not any("my" in path.name for path in written)
    assert "my-queue" not in written[0].read_text(encoding="utf-8")


def test_a_new_target_is_never_written_over_a_file(tmp_path: Path) -> None:
    runner = CliRunner()
    command = ["init-target", "mail", "--output", str(tmp_path)]
    assert runner.invoke(app, command).exit_code == 0
    (tmp_path / "mail_target.py").unlink()
    kept = (tmp_path / "mail_contract.toml").read_bytes()
    (tmp_path / "mail_contract.toml").write_bytes(kept + b"# mine\n")

    refused = runner.invoke(app, command)
    assert isinstance(refused.exception, ValueError)
    assert "mail_contract.toml is there already" in str(refused.exception)
    assert (tmp_path / "mail_contract.toml").read_bytes() == kept + b"# mine\n"
    assert not (tmp_path / "mail_target.py").exists()


@pytest.mark.parametrize("name", ["Mail", "mail_queue", "../mail", "", "a" * 41, "mail-"])
def test_a_name_that_cannot_be_one_of_a_file_and_a_class_is_refused(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(ValueError, match="small letters, digits"):
        skeleton.write(name, Kind.PYTHON, tmp_path)


def test_a_target_without_its_members_is_linted_and_not_refused(tmp_path: Path) -> None:
    file = tmp_path / "half.py"
    file.write_text("class target: name = 'half'\n")
    told = CliRunner().invoke(app, ["lint-target", str(file)])
    assert told.exit_code == 1
    assert "lacks broken, contract, prepare, client" in told.stdout
