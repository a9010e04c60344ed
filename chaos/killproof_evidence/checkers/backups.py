"""P24: a backup opens, is whole, holds what was acknowledged before it began, and stays."""

from collections.abc import Iterable

from killproof_evidence.contract import DELETED
from killproof_evidence.evidence import (
    Backup,
    Change,
    Evidence,
    RunChange,
    Story,
    at,
    at_end,
    where,
)
from killproof_evidence.finding import Finding, Tally
from killproof_evidence.history import Operation

Made = tuple[Operation, Backup]


def whole_backups(evidence: Evidence) -> Finding:
    """P24: a backup opens, is whole, holds every job acknowledged before it began, and stays."""
    tally = Tally()
    made: list[Made] = []
    named: dict[str, Operation] = {}
    for op in evidence.history.operations:
        if op.f != "backup" or op.type != "ok":
            continue
        name = op.value_end.get("backup") if isinstance(op.value_end, dict) else None
        if name is not None and (earlier := named.setdefault(str(name), op)) is not op:
            story = f"backup {name} was made twice: the later one has replaced the earlier"
            tally.violate(None, story, at(earlier), at_end(earlier), at(op), at_end(op))
        backup = evidence.backups.get(str(name))
        if backup is None:
            tally.missing(f"backup {name} was made, and nobody has opened it")
        elif _check_file(tally, op, backup):
            made.append((op, backup))
    _check_acknowledged(evidence, tally, made)
    if not evidence.changes:
        tally.missing("no audit: what the file held when a backup was made cannot be told")
    _check_moments(evidence, tally, made)
    tally.figures["backups"] = len(made)
    return tally.finding("no backup was made")


def _check_file(tally: Tally, op: Operation, backup: Backup) -> bool:
    """Check the copy as a file; return whether its jobs can be looked at."""
    tally.checked += 1
    if not backup.opens:
        story = f"backup {backup.name} does not open: {backup.error}"
        tally.violate(None, story, at(op), at_end(op), backup.at)
    elif backup.problems:
        story = f"backup {backup.name} is not whole: {'; '.join(backup.problems[:5])}"
        tally.violate(None, story, at(op), at_end(op), backup.at)
    elif len(backup.jobs) != backup.count:
        tally.missing(
            f"backup {backup.name} holds {backup.count} jobs, and {len(backup.jobs)} of them are "
            "on record"
        )
    else:
        return True
    return False


def _check_acknowledged(evidence: Evidence, tally: Tally, made: Iterable[Made]) -> None:
    """What a caller had been told before the backup began is in it: jobs, and how they ended."""
    rows_may_go = any(DELETED in new for new in evidence.contract.edges.values())
    for story in evidence.stories:
        enqueue = story.acknowledged()
        if enqueue is None or enqueue.t_end is None or story.id is None:
            continue
        gone = any(change.new is None for change in story.changes)
        if gone or (not story.changes and rows_may_go):
            continue  # Whether it went before or after is told by the commits, below.
        ack = next((op for op in story.outcomes if op.f == "ack" and op.type == "ok"), None)
        for op, backup in made:
            if enqueue.t_end >= op.t:
                continue
            tally.checked += 1
            found = backup.jobs.get(story.id)
            if found is None:
                tally.violate(
                    story.label,
                    f"job {story.label} was acknowledged before backup {backup.name} began, and is "
                    "not in it",
                    at(enqueue),
                    at_end(enqueue),
                    at(op),
                    at_end(op),
                    backup.at,
                )
            elif ack is not None and ack.t_end is not None and ack.t_end < op.t:
                _check_ended(tally, story, ack, (op, backup), found)


def _check_ended(
    tally: Tally, story: Story, ack: Operation, made: Made, found: tuple[int, str]
) -> None:
    op, backup = made
    line, state = found
    if state != "succeeded" and not story.tried("replay"):
        tally.violate(
            story.label,
            f"the ack of job {story.label} was acknowledged before backup {backup.name} began, and "
            f"there the job is {state}",
            at(ack),
            at_end(ack),
            at(op),
            at_end(op),
            ("backups.jsonl", line),
        )


def _check_moments(evidence: Evidence, tally: Tally, made: Iterable[Made]) -> None:
    """Hold each copy against the file as it was after the last commit that is in the copy.

    A lease means nothing in a copy, so what was leased may have been given back in it.
    """
    states: dict[str, Change] = {}  # The last change of each job so far.
    changes = evidence.changes
    taken = 0
    runs: dict[str, RunChange] = {}
    begun = 0
    known = []
    for _, backup in made:
        if backup.seq is not None:
            known.append((backup.seq, backup))
        elif changes:
            tally.missing(f"of what moment backup {backup.name} is, nothing tells")
    for seq, backup in sorted(known, key=lambda pair: pair[0]):
        while taken < len(changes) and changes[taken].line <= seq:
            states[str(changes[taken].story.id)] = changes[taken]
            taken += 1
        while begun < len(evidence.run_changes) and evidence.run_changes[begun].line <= seq:
            change = evidence.run_changes[begun]
            runs[str(change.name)] = change
            begun += 1
        tally.checked += 1
        _check_moment(evidence, tally, backup, states)
        _check_runs(tally, backup, runs)


def _check_runs(tally: Tally, backup: Backup, runs: dict[str, RunChange]) -> None:
    """The runs of workflows are in a table of their own, and of the same moment."""
    if backup.runs is None:
        if runs:
            tally.missing(f"nobody has looked for runs in backup {backup.name}")
        return
    for name in sorted(runs.keys() | backup.runs.keys()):
        then = runs.get(name)
        word, found = None if then is None else then.new, backup.runs.get(name)
        if word != found:
            tally.violate(
                name,
                f"run {name} was {word or 'not there'} when backup {backup.name} was taken, and is "
                f"{found or 'not there'} in it",
                where(then),
                backup.at,
            )


def _check_moment(
    evidence: Evidence, tally: Tally, backup: Backup, states: dict[str, Change]
) -> None:
    allows = evidence.contract.allows
    for job, change in states.items():
        line, state = backup.jobs.get(job, (0, None))
        given_back = change.new == "leased" and state is not None and allows("leased", state)
        if state != change.new and not given_back:
            tally.violate(
                change.story.label,
                f"job {job} was {change.new or 'gone'} when backup {backup.name} was taken, and is "
                f"{state or 'not there'} in it",
                change.at,
                backup.at,
                ("backups.jsonl", line) if line else None,
            )
    for job, (line, state) in backup.jobs.items():
        if job not in states:
            known = evidence.story_of(job)
            born = known.changes[0] if known is not None and known.changes else None
            tally.violate(
                job,
                f"job {job} is {state} in backup {backup.name}, and was not there when it was "
                "taken",
                backup.at,
                ("backups.jsonl", line),
                where(born),
            )
