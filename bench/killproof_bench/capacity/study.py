"""A whole run: each operation alone, the closed loop, the model, the open loop, the answer.

Every phase hands plain values to the next; `Study` keeps what has been measured, so that Ctrl-C
leaves a result with what there is. A machine that is too noisy is found out after the closed loop,
before anything is predicted from it.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from killproof import Queue
from killproof_bench import machine
from killproof_bench.capacity import answer, closed, compiled, predictor, search, terms
from killproof_bench.capacity.answer import Job
from killproof_bench.capacity.closed import Cell, Recording
from killproof_bench.capacity.predictor import Predictor
from killproof_bench.capacity.question import CROWD_MAX
from killproof_bench.capacity.result import CapacityResult, Demand, Question, Step
from killproof_bench.capacity.search import Crowd, Learned, Offer, Trial
from killproof_bench.crew import CrewError
from killproof_bench.recording import Kind
from killproof_bench.result import Correctness
from killproof_bench.scenarios.claim import Durability

#: Of the budget, for the closed loop; what the solo calls leave is the open loop's.
CLOSED_SHARE: Final = 0.4
BLOCKS_MIN: Final = 2
BLOCKS_MAX: Final = 12
SOLO_ROUNDS: Final = 300
SOLO_SECONDS: Final = 60.0
#: Two quantiles of the same load, second by second, apart by more than this: nothing repeats here.
REPEAT_MAX: Final = 1.6
STEAL_MAX: Final = 0.05
#: Of jobs that only show what work between two calls changes; longer ones need too many processes.
WORK_MS: Final = 5.0
WORK_MS_RANGE: Final = (2.0, 10.0)
#: Processes that claim in an open loop, unless the question names another number.
CROWD: Final = 12

Tick = Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run does."""

    question: Question
    durability: Durability
    budget_seconds: float
    seed: int
    calibrate: tuple[int, ...] = (4, 6, 8)  #: Ascending numbers of workers that the model sees.

    @property
    def work_ms(self) -> float:
        """How long jobs with work are in the closed loop."""
        low, high = WORK_MS_RANGE
        asked = self.question.job_ms
        return asked if low <= asked <= high else WORK_MS

    @property
    def calibrated(self) -> tuple[Cell, ...]:
        """What the model sees; one worker alone is a case of its own."""
        cells = [Cell(workers=1, job_ms=0.0)]
        cells += [
            Cell(workers=n, job_ms=job_ms) for job_ms in (0.0, self.work_ms) for n in self.calibrate
        ]
        return tuple(cells)

    @property
    def held_out(self) -> tuple[Cell, ...]:
        """What it is tried on: half of the fewest calibrated workers, and twice the most."""
        return tuple(
            Cell(workers=n, job_ms=job_ms)
            for job_ms in (0.0, self.work_ms)
            for n in (self.calibrate[0] // 2, 2 * self.calibrate[-1])
        )

    @property
    def blocks(self) -> int:
        """How often each cell is measured."""
        each = closed.seconds_of((*self.calibrated, *self.held_out), 1)
        return min(max(BLOCKS_MIN, round(CLOSED_SHARE * self.budget_seconds / each)), BLOCKS_MAX)


class Study:
    """A run, and what it has found so far."""

    def __init__(
        self, plan: Plan, folder: Path, environment: dict[str, str], *, command: str, tick: Tick
    ) -> None:
        """Prepare.

        Args:
            plan: What to do.
            folder: An empty folder on the disk to be measured.
            environment: cpu, filesystem, python and so on.
            command: As it was typed.
            tick: Told what is going on and the seconds that are done.
        """
        self.plan = plan
        self.environment = environment
        self.command = command
        self.interrupted = False
        self.demands: dict[str, Demand] = {}
        self.recording: Recording | None = None
        self.predictor: Predictor | None = None
        self.because = ""
        self.learned: Learned | None = None
        self.steps: list[Step] = []
        self.correctness: list[Correctness] = []
        self.sustainable: float | None = None
        self.searched = False  #: Whether the search came to its own end.
        self.confirmed: bool | None = None
        self.workers = plan.question.workers or CROWD
        self._folder = folder
        self._tick = tick
        self._begin = time.monotonic()
        self._files = 0
        self._learned_at = 0.0

    def run(self) -> CapacityResult:
        """Measure everything, and answer.

        Raises:
            CrewError: A process failed.
        """
        started, before = compiled.now(), machine.now()
        try:
            self._solo()
            self._closed()
            if not self.unfit():
                self._open()
        except KeyboardInterrupt:
            self.interrupted = True
        rates = self.recording.raw_rates if self.recording is not None else ()
        noise = machine.noise(before, machine.now(), list(rates))
        return compiled.result(self, started=started, noise=noise, spent=self._spent())

    @property
    def cores(self) -> int:
        """Processors that this process may use."""
        return len(os.sched_getaffinity(0))

    def unfit(self) -> tuple[str, ...]:
        """Say why this machine gives no answer now; empty when it does."""
        recording = self.recording
        if recording is None or recording.interrupted:
            return ()
        reasons = []
        disturbed = sum(each.disturbed for each in recording.looked)
        if 2 * disturbed > len(recording.looked):
            reasons.append(
                f"in {disturbed} of {len(recording.looked)} seconds other programs used over "
                f"{closed.FOREIGN_MAX:.0%} of the processor"
            )
        for cell in self.plan.calibrated:
            counts = recording.counts(cell)
            if len(counts) < BLOCKS_MIN:
                continue
            low, high = np.percentile(counts, (25, 75))
            if high > REPEAT_MAX * low:
                reasons.append(
                    f"{cell.workers} workers with {cell.job_ms:g} ms jobs did {low:,.0f} jobs/s in "
                    f"one second and {high:,.0f} in another"
                )
        if any(len(recording.counts(cell)) < BLOCKS_MIN for cell in self.plan.calibrated):
            reasons.append("a load that the model rests on was never measured undisturbed twice")
        return tuple(reasons)

    def job(self) -> Job | None:
        """Return the demand of a whole job, once an open loop has told it."""
        if self.learned is None:
            return None
        extend = self.demands["extend"].hold_us.value or 0.0
        return answer.job_of(self.learned, self.cores, self.plan.question.job_ms, extend)

    # The phases, in order.

    def _solo(self) -> None:
        self._tell("each operation alone")
        database = self._folder / "solo.db"
        with Queue(database, durability=self.plan.durability):
            pass
        try:
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "killproof_bench.capacity.solo"),
                    *(str(database), str(SOLO_ROUNDS)),
                ],
                capture_output=True,
                text=True,
                timeout=SOLO_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CrewError(
                f"{SOLO_ROUNDS} calls of each operation took over {SOLO_SECONDS:g} s: the disk is "
                "too slow for this measurement"
            ) from error
        if done.returncode:
            raise CrewError(f"timing each operation alone failed: {done.stderr.strip()[-300:]}")
        self.demands = compiled.demands(json.loads(done.stdout)["found"], seed=self.plan.seed)

    def _closed(self) -> None:
        plan, spent = self.plan, self._spent()
        folder = self._folder / "closed"
        folder.mkdir()
        self.recording = closed.run(
            folder,
            (*plan.calibrated, *plan.held_out),
            blocks=plan.blocks,
            durability=plan.durability,
            seed=plan.seed,
            tick=lambda text, done: self._tick(text, spent + done),
        )
        self.correctness.append(self.recording.correctness)
        seen = [len(self.recording.seen(cell)) for cell in plan.calibrated]
        if min(seen) >= BLOCKS_MIN and not self.unfit():
            self.predictor, self.because = self._calibrated()
        if self.recording.interrupted:
            raise KeyboardInterrupt

    def _calibrated(self) -> tuple[Predictor, str]:
        recording, plan = self.recording, self.plan
        assert recording is not None

        def calibration(
            job_ms: float, workers: tuple[int, ...], alone: terms.Observed | None = None
        ) -> terms.Calibration:
            cells = [Cell(workers=count, job_ms=job_ms) for count in workers]
            observed = [terms.observe(recording.slices(cell), Kind.ACK_AND_CLAIM) for cell in cells]
            if any(each is None for each in observed):
                raise CrewError("a load of the closed loop has no calls: the workers did not work")
            return terms.Calibration(
                job_ms=job_ms,
                workers=workers,
                observed=tuple(each for each in observed if each is not None),
                cpu_us=tuple(recording.cpu_us(cell) for cell in cells),
                alone=alone,
                cores=self.cores,
            )

        alone = calibration(0.0, (1,))
        return predictor.chosen(
            alone=alone,
            idle=calibration(0.0, plan.calibrate, alone.observed[0]),
            working=calibration(plan.work_ms, plan.calibrate),
            cores=self.cores,
            seed=plan.seed,
            measured={
                cell: float(recording.counts(cell).mean()) / closed.SLICE_SECONDS
                for cell in plan.calibrated
            },
        )

    def _open(self) -> None:
        """Learn the terms of an open loop, then search for the edge, or try the peak."""
        question = self.plan.question
        first = Crowd(workers=min(self.workers, CROWD_MAX), job_ms=question.job_ms)
        learning = Crowd(workers=CROWD, job_ms=self.plan.work_ms)
        rate = search.BRACKET[0] * self._guess()
        fits = first.workers / (question.job_ms / 1e3 + 0.002) > 2 * rate
        if question.rate_per_s is not None or not fits:
            self._series(learning, [Trial(phase="bracket", rate_per_s=rate)], [], kept=False)
        if question.rate_per_s is None:
            self._search(first)
        else:
            self._try_peak(question.rate_per_s * question.peak)

    def _guess(self) -> float:
        """Return the ceiling of whole jobs from the closed loop: where the bracket begins."""
        assert self.predictor is not None
        most = max(self.plan.calibrate)
        network = self.predictor.network(most, self.plan.work_ms)
        alone = {
            name: self.demands[name].hold_us.value or 1.0 for name in ("enqueue", "ack_and_claim")
        }
        return 1 / (network.lock * (1 + alone["enqueue"] / alone["ack_and_claim"]))

    def _search(self, crowd: Crowd) -> None:
        self.workers = crowd.workers
        known = self.job()
        ceiling = (
            self._guess() if known is None else answer.most(known, crowd.workers, crowd.job_ms)
        )
        steps: list[Step] = []

        def loads() -> Iterator[Trial]:
            nonlocal ceiling
            while (trial := search.following(ceiling, steps)) is not None:
                needed = search.CONFIRMATIONS * self._seconds(trial) + search.START_SECONDS
                if self._left() < needed + self._seconds(trial):
                    return
                yield trial
                job = self.job()
                if job is not None:
                    ceiling = answer.most(job, crowd.workers, crowd.job_ms)
            self.searched = True

        self._series(crowd, loads(), steps)
        edge = search.edge(self.steps)
        share = search.SUSTAINABLE
        while edge is not None and self.sustainable is None:
            trial = Trial(phase="confirm", rate_per_s=share * edge)
            if self._confirm(crowd, trial) is True:
                self.sustainable = trial.rate_per_s
            share -= 0.1
            if self._left() < search.CONFIRMATIONS * self._seconds(trial) or share < 0.7:
                break

    def _try_peak(self, peak_per_s: float) -> None:
        job = self.job()
        if job is None:
            raise CrewError("the open loop has told nothing: none of its jobs was claimed")
        question = self.plan.question
        if question.workers is None:
            self.workers = answer.workers_for(job, peak_per_s, question.job_ms) or 0
        if 0 < self.workers <= CROWD_MAX and peak_per_s < job.ceiling:
            crowd = Crowd(workers=self.workers, job_ms=question.job_ms)
            trial = Trial(phase="confirm", rate_per_s=peak_per_s)
            if self._left() > search.CONFIRMATIONS * self._seconds(trial):
                self.confirmed = self._confirm(crowd, trial)

    def _confirm(self, crowd: Crowd, trial: Trial) -> bool | None:
        """Offer one load again on fresh files; the first that does not pass ends it.

        Returns:
            Whether every limit was kept each time; `None` where too few jobs came to tell.
        """
        for _ in range(search.CONFIRMATIONS):
            steps: list[Step] = []
            self._series(crowd, [trial], steps)
            if steps[0].passed is not True:
                return steps[0].passed
        return True

    def _series(
        self, crowd: Crowd, trials: Iterable[Trial], steps: list[Step], *, kept: bool = True
    ) -> None:
        """Offer loads on a fresh file; what is kept has been judged, also when Ctrl-C ends it."""
        with self._offer(crowd) as offer:
            interrupted: KeyboardInterrupt | None = None
            try:
                for trial in trials:
                    steps.append(self._step(offer, crowd, trial))
            except KeyboardInterrupt as pressed:
                interrupted = pressed
            self.correctness.append(offer.finish())
        if kept:
            self.steps += steps
        if interrupted is not None:
            raise interrupted

    def _offer(self, crowd: Crowd) -> Offer:
        self._files += 1
        return Offer(
            self._folder / f"open-{self._files}",
            crowd,
            durability=self.plan.durability,
            seed=self.plan.seed + self._files,
        )

    def _step(self, offer: Offer, crowd: Crowd, trial: Trial) -> Step:
        self._tell(f"{trial.phase}: {trial.rate_per_s:,.0f} jobs/s")
        seconds = search.step_seconds(trial.rate_per_s, self.plan.question.slos)
        written, part = offer.load(trial.rate_per_s, seconds, lambda: None)
        predicted = None
        if self.learned is not None:
            predicted = self.learned.play(
                trial.rate_per_s,
                workers=crowd.workers,
                job_ms=crowd.job_ms,
                jobs=predictor.PLAYED_JOBS // 2,
                seed=self.plan.seed,
            )
        step = search.judged(
            written,
            part,
            phase=trial.phase,
            rate_per_s=trial.rate_per_s,
            crowd=crowd,
            slos=self.plan.question.slos,
            predicted=predicted,
            seed=self.plan.seed,
        )
        # A load that broke a limit says what a line without end costs, not what a job does.
        if self.learned is None or (step.passed and trial.rate_per_s > self._learned_at):
            self.learned = search.learn(written, part) or self.learned
            self._learned_at = trial.rate_per_s
        return step

    def _seconds(self, trial: Trial) -> float:
        slos = self.plan.question.slos
        step = search.step_seconds(trial.rate_per_s, slos) + search.WARMUP_SECONDS + 1.0
        return step + (search.START_SECONDS if trial.phase == "confirm" else 0.0)

    def _spent(self) -> float:
        return time.monotonic() - self._begin

    def _left(self) -> float:
        return self.plan.budget_seconds - self._spent()

    def _tell(self, text: str) -> None:
        self._tick(text, self._spent())
