"""The command `killproof chaos lint-target`: what is wrong with a target, a line each.

Exit codes: 0 nothing is wrong, 1 something is, 3 the trial could not be made, 64 no such target.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from killproof_chaos import targets
from killproof_chaos.command import EXIT_FAILED
from killproof_evidence.target import Target, TargetIncomplete, level

if TYPE_CHECKING:
    from killproof_chaos.lint.remarks import Remark
    from killproof_chaos.lint.trial import Trial

SCHEMA: Final = 1
#: Three jobs take a second; an environment that must be made first, or a busy machine, minutes.
DEADLINE_SECONDS: Final = 120.0


def lint_target(
    target: Annotated[str, typer.Argument(help="As for run: a file, module:attribute, or a name.")],
    trial: Annotated[bool, typer.Option(help="Also have one worker do three jobs.")] = True,
    deadline: Annotated[
        float, typer.Option(help="Seconds that the trial may take.")
    ] = DEADLINE_SECONDS,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Say what is wrong with a target, and what its level lets it be judged on.

    Looks at the members, the contract and the machine, then makes a small trial: three jobs and one
    for each option, one worker, SIGTERM, a snapshot.
    """
    from killproof_chaos.lint import contract_rules, surroundings
    from killproof_chaos.lint.remarks import problem

    if not 1 <= deadline <= 3_600:
        raise ValueError(f"--deadline {deadline:g} must be a number from 1 to 3600")
    performed: Trial | None = None
    try:
        found = targets.find(target)
    except TargetIncomplete as error:
        _tell(target, None, [problem("members", str(error))], None, as_json=as_json)
        raise typer.Exit(1) from None
    remarks = [*contract_rules.remarks(found), *surroundings.remarks(found, Path.cwd())]
    if trial and not any(remark.where == "members" for remark in remarks):
        with _folder() as folder:
            performed, seen = _perform(target, found, folder / "store", deadline)
            remarks += seen
            _refuse_half(performed, folder / "store")
    _tell(found.name, found, remarks, performed, as_json=as_json)
    raise typer.Exit(int(any(remark.weight == "problem" for remark in remarks)))


def _perform(
    name: str, target: Target, folder: Path, seconds: float
) -> "tuple[Trial, list[Remark]]":
    from killproof_chaos.lint import trial, trial_rules
    from killproof_evidence.store import Store

    print(f"trying it: one worker, at most {seconds:.0f} s", file=sys.stderr)
    performed = trial.perform(name, folder, seconds)
    # Of several jobs the same can be wrong; once said is enough.
    return performed, list(dict.fromkeys(trial_rules.remarks(performed, target, Store(folder))))


def _refuse_half(performed: "Trial", folder: Path) -> None:
    """End with the harness's own code when its trial ended between two steps of the target."""
    from killproof_chaos.lint import trial, trial_rules

    if performed.stopped_in == trial.DONE:
        words = trial_rules.last_words(folder / trial.TRIAL_LOG)
        print(
            f"killproof: the trial itself failed, which says nothing of the target{words}",
            file=sys.stderr,
        )
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def _folder() -> Iterator[Path]:
    """Make a folder where runs would keep their evidence: on this disk, not on that of /tmp."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="killproof-lint-", dir=Path.cwd()))
    except OSError as error:
        print(
            f"killproof: the trial needs a folder that can be written, and {Path.cwd()} is none "
            f"({error.strerror}): go to another, or give --no-trial",
            file=sys.stderr,
        )
        raise typer.Exit(EXIT_FAILED) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _tell(
    name: str,
    target: Target | None,
    remarks: "list[Remark]",
    trial: "Trial | None",
    *,
    as_json: bool,
) -> None:
    from killproof_chaos.lint.levels import ENGINES, LEVELS, next_step

    of = None if target is None else level(target)
    if as_json:
        record: dict[str, Any] = {"schema": SCHEMA, "target": name, "level": of}
        for weight in ("problem", "note"):
            record[f"{weight}s"] = [
                {"where": each.where, "text": each.text}
                for each in remarks
                if each.weight == weight
            ]
        record["engines"] = [] if of is None else list(ENGINES[of])
        record["next"] = None if of is None else next_step(of)
        record["trial"] = None if trial is None else trial.facts
        print(json.dumps(record, ensure_ascii=False, indent=1))
        return
    for remark in remarks:
        print(f"{remark.weight}: {remark.where}: {remark.text}")
    if of is not None:
        print(f"{name} is of level {of} ({LEVELS[of][0]}), for {', '.join(ENGINES[of])}")
        print(next_step(of))
    if trial is not None and "stop" in trial.facts:
        work, stop = trial.facts["work"], trial.facts["stop"]
        jobs = sum("id" in told for told in trial.facts["enqueue"].values())
        print(
            f"tried: {jobs} jobs in {work['seconds']:.1f} s, the worker's end after "
            f"{stop['seconds']:.1f} s",
            file=sys.stderr,
        )
    problems = sum(remark.weight == "problem" for remark in remarks)
    print(f"{problems} problem{'s' if problems != 1 else ''}")
