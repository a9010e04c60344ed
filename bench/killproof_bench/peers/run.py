"""Run the contenders in rounds, in random order, on fresh copies of their own files.

Question: what do sixteen workers get from killproof, and what from other queues on SQLite, when
all keep the same durability? Primary figures: jobs/s, p99.9 and the longest wait of one job, as
ratios of the rounds of the same number. Valid comparison: contenders of one run at one number of
workers and one level of durability, nothing else.

Every contender has the same jobs, is driven by the same loop in as many processes, and makes its
own file with its own calls. What one costs in a round falls on nobody else: the order inside each
round is drawn anew.
"""

import os
import random
import shutil
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from killproof_bench import ledger, measure
from killproof_bench.machine import raw_syncs_per_second
from killproof_bench.peers import judging
from killproof_bench.peers.catalog import OURS, POWER, SHIPPED, Peer
from killproof_bench.peers.drivers.loop import Spec
from killproof_bench.peers.judging import Cut
from killproof_bench.peers.processes import Contender, PeerFailed, Workers, ask_all
from killproof_bench.peers.result import Contender as Told
from killproof_bench.peers.result import Level, PeerCell, PeerRound, State
from killproof_bench.result import ClaimCard, Verdict
from killproof_bench.seeding import PAYLOAD_BYTES
from killproof_evidence.isolated import NotInstalled, ensure_python

#: More than any contender takes from one file; a round that finds it empty is `unknown`.
BACKLOG_PER_SECOND = {POWER: 6_000, SHIPPED: 12_000}
PAUSE_SECONDS = 0.1
RAW_SECONDS = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run measures."""

    peers: tuple[Peer, ...]
    workers: tuple[int, ...] = (1, 16)
    seconds: float = 3.0
    warmup_seconds: float = 0.5
    rounds: int = 5
    seed: int = 1

    def jobs(self, setting: str) -> int:
        """Return how many jobs each file holds when a round begins."""
        return round(BACKLOG_PER_SECOND[setting] * (self.seconds + self.warmup_seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One round of one contender, in its place of the run."""

    number: int
    position: int
    contender: str
    setting: str
    workers: int
    hash_seed: int


def order(plan: Plan, arms: Sequence[tuple[str, str]]) -> Iterator[Step]:
    """Yield every round: all of one number before the next, in an order drawn for each."""
    coin = random.Random(plan.seed)
    position = 0
    for number in range(plan.rounds):
        cells = [(name, setting, workers) for name, setting in arms for workers in plan.workers]
        coin.shuffle(cells)
        hash_seed = coin.randrange(1, 2**32)
        for name, setting, workers in cells:
            yield Step(
                number=number,
                position=position,
                contender=name,
                setting=setting,
                workers=workers,
                hash_seed=hash_seed,
            )
            position += 1


@dataclass(slots=True)
class Recorded:
    """The rounds of one cell as they come in."""

    rounds: list[PeerRound] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)


class Bench:
    """A run; keeps what has ended, so that an interrupted run can report it."""

    def __init__(self, plan: Plan, folder: Path, environment: dict[str, str]) -> None:
        """Prepare nothing yet: `prepare` says how far it is.

        Args:
            plan: What to measure.
            folder: An empty folder on the disk to be measured.
            environment: For the claim cards.
        """
        self.plan = plan
        self.raw_rates: list[float] = []
        self._folder = folder
        self._environment = environment
        self._contenders: dict[str, Contender] = {}
        self._state: dict[str, tuple[State, str]] = {}
        self._recorded: defaultdict[tuple[int, str, str], Recorded] = defaultdict(Recorded)
        for peer in (*OURS, *plan.peers):
            self._state[peer.name] = ("not run", "interrupted before its first round")

    def prepare(self, tick: Callable[[str], None]) -> None:
        """Make the environments and one file for each contender and setting."""
        for peer in (*OURS, *self.plan.peers):
            tick(f"environment of {peer.name}")
            try:
                self._contenders[peer.name] = _installed(peer)
            except NotInstalled as error:
                self._state[peer.name] = ("not installed", str(error))
        work = [
            (
                self._contenders[name],
                self._spec("seed", name, setting, self._template(name, setting)),
            )
            for name, setting in self._arms()
        ]
        for _, spec in work:
            Path(spec.folder).mkdir(parents=True)
        failed = ask_all(work, lambda name: tick(f"jobs of {name} are made"))
        for contender, spec in work:
            if spec.folder in failed:
                self._fail(contender.peer.name, failed[spec.folder])

    def run(self, tick: Callable[[Step, float], None]) -> None:
        """Run every round; `tick` is told the round and the seconds since its begin."""
        self.raw_rates.append(raw_syncs_per_second(self._folder, RAW_SECONDS))
        for step in self.steps():
            if self._state[step.contender][0] in ("failed", "not installed"):
                continue
            begin = time.monotonic()

            def told(step: Step = step, begin: float = begin) -> None:
                tick(step, time.monotonic() - begin)

            try:
                self._run_round(step, told)
            except PeerFailed as error:
                if step.contender in {peer.name for peer in OURS}:
                    raise
                self._fail(step.contender, str(error))

    def steps(self) -> list[Step]:
        """Return the rounds in their order."""
        return list(order(self.plan, self._arms()))

    def contenders(self) -> tuple[Told, ...]:
        """Return who took part, and who did not and why."""
        return tuple(self._told(peer) for peer in (*OURS, *self.plan.peers))

    def cells(self) -> tuple[PeerCell, ...]:
        """Return what has ended so far."""
        return tuple(
            self._cell(workers, name, setting, recorded)
            for (workers, name, setting), recorded in sorted(self._recorded.items())
        )

    def _arms(self) -> list[tuple[str, str]]:
        """Return contenders and settings; killproof at process only where somebody compares."""
        wanted = {setting for peer in self.plan.peers for setting in peer.settings} | {POWER}
        return [
            (peer.name, setting)
            for peer in (*OURS, *self.plan.peers)
            if peer.name in self._contenders
            for setting in peer.settings
            if setting in wanted
        ]

    def _run_round(self, step: Step, tick: Callable[[], None]) -> None:
        plan, folder = self.plan, self._folder / f"round-{step.position}"
        contender = self._contenders[step.contender]
        jobs = plan.jobs(step.setting)
        place = folder / "queue"
        shutil.copytree(self._template(step.contender, step.setting), place)
        try:
            os.sync()
            time.sleep(PAUSE_SECONDS)
            spec = self._spec("work", step.contender, step.setting, place)
            with Workers(contender, spec, step.workers, step.hash_seed) as workers:
                workers.wait_until_ready()
                start_ns = workers.go(plan.warmup_seconds + plan.seconds)
                from_ns = start_ns + round(plan.warmup_seconds * 1e9)
                workers.wait_for(from_ns + round(plan.seconds * 1e9), tick)
                outcome = workers.finish()
            left = contender.ask(self._spec("account", step.contender, step.setting, place))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        cut = judging.cut(outcome.calls, from_ns, plan.seconds)
        ours = contender.peer.role != "peer"
        counted = judging.judge(outcome, jobs, left, ours=ours)
        self.raw_rates.append(raw_syncs_per_second(self._folder, RAW_SECONDS))
        recorded = self._recorded[step.workers, step.contender, step.setting]
        recorded.facts = dict(outcome.facts)
        recorded.cuts.append(cut)
        tail = measure.quantile(cut.latencies, 999)
        recorded.rounds.append(
            PeerRound(
                number=step.number,
                position=step.position,
                jobs_per_s=sum(cut.counts) / (len(cut.per_block) * cut.block_seconds),
                counts=cut.counts,
                p999_ms=None if tail is None else tail / judging.NS_PER_MS,
                longest_ms=_longest_ms(cut),
                raw_before=self.raw_rates[-2],
                raw_after=self.raw_rates[-1],
                acked_twice=counted.acked_twice,
                lost=counted.lost,
                errors=outcome.errors + outcome.refused,
                error_example=outcome.error_example,
                empty=outcome.empty,
                correctness=counted.correctness,
            )
        )
        self._state[step.contender] = ("measured", "")

    def _spec(self, mode: str, name: str, setting: str, place: Path) -> Spec:
        ours = self._contenders[name].peer.role != "peer"
        jobs = self.plan.jobs(setting)
        return Spec(
            mode=mode,
            arm=name,
            folder=str(place),
            # Killproof's level is the file's own, made with it; another's is its connection's.
            level="seed" if mode == "seed" and not ours else setting,
            jobs=jobs,
            payload_bytes=PAYLOAD_BYTES,
            # One more: the job that a worker did not end.
            calls_max=jobs + 1,
        )

    def _template(self, name: str, setting: str) -> Path:
        return self._folder / f"template-{name}-{setting}"

    def _fail(self, name: str, error: str) -> None:
        # What it did before stands; it gets no further round.
        self._state[name] = ("failed", error)

    def _told(self, peer: Peer) -> Told:
        state, because = self._state[peer.name]
        contender = self._contenders.get(peer.name)
        wanted = "" if peer.packages is None else f"Python {peer.packages.python}"
        return Told(
            name=peer.name,
            role=peer.role,
            version=peer.version,
            url=peer.url,
            language=wanted if contender is None else contender.runtime,
            packages=() if contender is None else contender.packages,
            claim_call=peer.claim_call,
            ack_call=peer.ack_call,
            durability_how=peer.durability_how,
            delivery=peer.delivery,
            gaps=peer.gaps,
            state=state,
            because=because,
        )

    def _cell(self, workers: int, name: str, setting: str, recorded: Recorded) -> PeerCell:
        cuts, rounds = recorded.cuts, recorded.rounds
        blocks_per_round = len(cuts[0].per_block)
        latencies = np.concatenate([part.latencies for part in cuts])
        blocks = np.concatenate(
            [part.blocks + number * blocks_per_round for number, part in enumerate(cuts)]
        )
        p50, p99, p999 = (
            measure.quantile_figure(latencies, blocks, permille, seed=self.plan.seed)
            for permille in (500, 990, 999)
        )
        rate = measure.rate_figure(
            np.concatenate([part.per_block for part in cuts]),
            block_seconds=cuts[0].block_seconds,
            seed=self.plan.seed,
        )
        correctness = ledger.merged([each.correctness for each in rounds])
        level = judging.level_of(recorded.facts)
        return PeerCell(
            contender=name,
            workers=workers,
            level=level,
            jobs_per_s=rate,
            p50_ms=p50,
            p99_ms=p99,
            p999_ms=p999,
            longest_ms=max(each.longest_ms for each in rounds),
            fewest_over_most=statistics.median(
                measure.fewest_over_most(part.counts) for part in cuts
            ),
            acked_twice=sum(each.acked_twice for each in rounds),
            lost=sum(each.lost for each in rounds),
            errors=sum(each.errors for each in rounds),
            empty=sum(each.empty for each in rounds),
            correctness=correctness,
            card=self._card(workers, name, setting, recorded, level, rate.n, correctness.verdict),
            rounds=tuple(rounds),
        )

    def _card(
        self,
        workers: int,
        name: str,
        setting: str,
        recorded: Recorded,
        level: Level,
        n: int,
        verdict: Verdict,
    ) -> ClaimCard:
        facts, contender = recorded.facts, self._contenders[name]
        blocks = sum(len(part.per_block) for part in recorded.cuts)
        return ClaimCard(
            operation=f"claim: {contender.peer.claim_call}; ack: {contender.peer.ack_call}",
            unit="jobs/s; milliseconds that one worker spends on one job, claim and ack",
            load_model="closed loop, no work between two jobs",
            arrivals="none: all jobs are there before the round begins",
            workers=f"{workers} processes",
            batch=1,
            payload_bytes=PAYLOAD_BYTES,
            rows_live=self.plan.jobs(setting),
            rows_dead=0,
            journal_mode=facts["journal_mode"],
            synchronous=facts["synchronous"],
            autocheckpoint=int(facts["autocheckpoint"]),
            busy_policy=f"the queue's own; busy_timeout {facts.get('busy_timeout', 'its own')} ms",
            durability=level,
            filesystem=self._environment["filesystem"],
            cpu=self._environment["cpu"],
            python=contender.runtime,
            sqlite=facts["sqlite"],
            seconds=self.plan.seconds * len(recorded.rounds),
            n=n,
            interval=f"95%, bootstrap over {blocks} blocks of a second"
            if blocks >= measure.BLOCKS_MIN
            else f"refused: {blocks} blocks of a second are too few",
            checkpoints=-1,
            late_or_skipped="not applicable: closed loop",
            steady=all(
                measure.is_steady([int(count) for count in part.per_block])
                for part in recorded.cuts
            ),
            correctness=verdict,
        )


def _longest_ms(cut: Cut) -> float:
    return float(cut.latencies.max()) / judging.NS_PER_MS if len(cut.latencies) else 0.0


def _installed(peer: Peer) -> Contender:
    """Return the interpreter of a peer, made now if need be; our own has killproof."""
    if peer.packages is None:
        runtime = f"Python {'.'.join(str(part) for part in sys.version_info[:3])}"
        return Contender(peer=peer, program=sys.executable, runtime=runtime, packages=())
    ready = ensure_python(peer.packages)
    return Contender(
        peer=peer,
        program=str(ready.program),
        runtime=ready.runtime,
        packages=tuple(f"{name}=={version}" for name, version in sorted(ready.versions.items())),
    )
