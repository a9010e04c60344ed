"""Takes the guards of the core away, one at a time, and sees a test go red for each.

    python tests/mutations.py            # all; needs minutes
    python tests/mutations.py --quick    # a few; part of the suite
    python tests/mutations.py turnstile  # those whose name holds the word

Each line of `MUTATIONS` is a guard: the rule it keeps, the text that is the guard, what stands
there instead, and the test that must fail then. The sources are copied; nothing is changed in
place. First all these tests run on an unchanged copy, and must pass: a red test proves nothing
that is red anyway. A guard whose text is no longer there is an error: the table must follow the
code.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE_ROOTS = ("queue", "chaos", "bench")
CORE = "queue/killproof/core"

#: A mutation that makes a test hang is seen as well, after so long.
SECONDS_MAX = 90
#: Without a mutation nothing may hang, however crowded the machine.
HEALTHY_SECONDS_MAX = 600
#: What pytest says when tests ran and some failed; all else is no verdict.
TESTS_FAILED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One guard and the test that misses it."""

    name: str
    file: str
    guard: str
    instead: str
    test: str  #: file and, after ::, a word of the test's name as for pytest -k
    quick: bool = False


def m(name: str, file: str, guard: str, instead: str, test: str, quick: bool = False) -> Mutation:
    return Mutation(name=name, file=file, guard=guard, instead=instead, test=test, quick=quick)


UNIT = "tests/unit/test_core"
DURABILITY = f"{UNIT}_durability.py::"
LIVENESS = f"{UNIT}_liveness.py::"
FILES = f"{UNIT}_files.py::"
SCHEMA = f"{UNIT}_schema.py::"
ENQUEUE = f"{UNIT}_enqueue.py::"
CLAIM = f"{UNIT}_claim.py::"
DEADLINE = f"{UNIT}_deadline.py::"
OUTCOMES = f"{UNIT}_outcomes.py::"
RETRY = f"{UNIT}_retry.py::"
SHARING = "tests/process/test_core_sharing.py::"
TURNSTILE = "tests/process/test_core_turnstile.py::"
WAKES = "tests/process/test_core_waking.py::"
PREFETCHES = "tests/process/test_worker_prefetch.py::"
DEATH = "tests/process/test_core_death.py::"
REPORTS = "tests/reports/test_"
FORK = "tests/process/test_core_fork_inheritance.py::"

OPENING = (
    m(
        "R-A1: the log is opened after the read that pins it",
        "database.py",
        'connection.execute("PRAGMA journal_mode = wal").fetchall()\n        # Outside',
        "return self.host.lock.barrier(self.path)\n        # Mutated",
        f"{DURABILITY}opened_while_a_read_pins_it",
    ),
    m(
        "R-A1: the mode is read again inside the transaction",
        "database.py",
        'if mode != "wal":',
        "if False:",
        f"{DURABILITY}left_the_mode_before_the_read",
    ),
    m(
        "R-A1: the log is never made by us",
        "barrier.py",
        '-wal", os.O_RDONLY | os.O_CLOEXEC)',
        '-wal", os.O_RDWR | os.O_CREAT)',
        f"{DURABILITY}never_made_by_the_barrier",
    ),
    m(
        "R-A1: symbolic links are resolved",
        "database.py",
        "self.path = os.path.realpath(path)",
        "self.path = os.path.abspath(path)",
        f"{FILES}symbolic_link",
    ),
    m(
        "R-A3: the log's name is made durable",
        "barrier.py",
        " sync_directory(path)\n",
        " pass\n",
        f"{DURABILITY}logs_name_is_made_durable",
    ),
    m(
        "R-A6: no automatic checkpoint",
        "database.py",
        "PRAGMA wal_autocheckpoint = 0",
        "PRAGMA wal_autocheckpoint = 1000",
        f"{DURABILITY}nothing_checkpoints_while_bypassing",
    ),
    m(
        "R-A6: synchronous is read back",
        "database.py",
        '"PRAGMA synchronous").fetchone()[0] != 1:',
        '"PRAGMA synchronous").fetchone()[0] == 99:',
        f"{DURABILITY}ignores_synchronous_is_refused",
    ),
    m(
        "R-A7: level power is refused where fsync does nothing",
        "barrier.py",
        'if durability == "power" and',
        "if False and",
        f"{FILES}in_memory_is_refused_at_level_power",
    ),
    m(
        "R-A7: network file systems are refused",
        "barrier.py",
        'if kind in NETWORK_KINDS or kind.startswith("fuse"):',
        "if False:",
        f"{FILES}file_system_under_a_path",
    ),
    m(
        "R-A7: what a refusal of the host says is obeyed",
        "database.py",
        "if refusal := host.lock.refusal(self.path, level):",
        "if (refusal := host.lock.refusal(self.path, level)) and False:",
        f"{FILES}refusal_of_the_host",
    ),
    m(
        "R-A8: durability is the file's",
        "database.py",
        "if asked not in (None, level):",
        "if False:",
        f"{FILES}another_level_than_the_files",
    ),
    m(
        "a newer file is refused",
        "database.py",
        "not isinstance(version, int) or version > SCHEMA_VERSION",
        "not isinstance(version, int)",
        f"{FILES}newer_file",
    ),
    m(
        "a foreign table is refused, whatever its case",
        "database.py",
        "found = {name.lower(): name for",
        "found = {name: name for",
        f"{FILES}foreign_table",
    ),
    m(
        "what is pending is decided under the write lock",
        "database.py",
        "version, _ = self._schema_of(connection)  # Again: somebody may have been faster.",
        "version = 0",
        f"{SHARING}sixteen_processes",
    ),
)

BARRIER = (
    m(
        "R-A2: a deleted log is noticed",
        "barrier.py",
        "if not is_same:",
        "if False:",
        f"{DURABILITY}log_deleted_under_the_connection",
        quick=True,
    ),
    m(
        "R-A4: a write waits for the barrier",
        "database.py",
        "            self._settle(handle, operation, transaction)\n",
        "            pass\n",
        f"{DURABILITY}no_call_returns_before",
        quick=True,
    ),
    m(
        "R-A4: a read waits for the barrier",
        "database.py",
        "            self._check_ours(handle)\n            self._wait_for_disk(handle)",
        "            self._check_ours(handle)",
        f"{DURABILITY}no_read_states_a_fact",
    ),
    m(
        "R-A4: a refusal waits for the barrier",
        "database.py",
        "refused = True",
        "refused = False",
        f"{DURABILITY}no_refusal_states_a_fact",
    ),
    m(
        "R-A5: a failed sync stops the queue",
        "database.py",
        '            self.fail(f"fdatasync of the log failed: {cause}" if',
        '            print(f"{cause}" if',
        f"{DURABILITY}never_retried_and_stops_everybody",
    ),
    m(
        "R-A5: the marker stops other processes",
        "barrier.py",
        "            )\n        check_not_failed(self._path)",
        "            )",
        f"{DURABILITY}marker_of_another_process",
    ),
    m(
        "R-A5: the marker is left",
        "database.py",
        "        barrier.mark_failed(self.path, reason)\n",
        "",
        f"{DURABILITY}never_retried_and_stops_everybody",
    ),
    m(
        "R-A5: beside the marker nothing is opened",
        "database.py",
        "            raise FileRefused(refusal)\n        barrier.check_not_failed(self.path)",
        "            raise FileRefused(refusal)",
        f"{SHARING}disk_failed_ends_without_closing",
    ),
    m(
        "R-A5: after a failure the connection is kept",
        "database.py",
        "in [handle for database in stopped for handle in database._handles]:",
        "in ():",
        f"{SHARING}disk_failed_ends_without_closing",
    ),
    m(
        "R-A5: also the end of the interpreter closes nothing",
        "connection.py",
        "ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.connection))",
        "pass",
        f"{SHARING}disk_failed_ends_without_closing",
    ),
    m(
        "an error of COMMIT is an unknown outcome",
        "database.py",
        '        raise OutcomeUnknown(\n            f"the commit may',
        '        raise error\n        raise OutcomeUnknown(\n            f"the commit may',
        f"{DURABILITY}error_of_the_commit",
    ),
    m(
        "the lock is left before the barrier",
        "database.py",
        "handle.turnstile.leave()",
        "pass",
        f"{DURABILITY}between_the_commit_and_the_synced",
    ),
)

CHECKPOINTS = (
    m(
        "R-B4: nobody checkpoints while bypassing",
        "database.py",
        "if held and self._checkpoint_due(handle):",
        "if self._checkpoint_due(handle):",
        f"{DURABILITY}nothing_checkpoints_while_bypassing",
    ),
    m(
        "R-D2: a checkpoint is FULL",
        "database.py",
        '"PRAGMA wal_checkpoint(FULL)"',
        '"PRAGMA wal_checkpoint(PASSIVE)"',
        f"{DURABILITY}checkpoint_is_full",
        quick=True,
    ),
    m(
        "R-D2: a log that grows is checkpointed",
        "database.py",
        "> LOG_GROWTH_BYTES",
        "> (1 << 60)",
        f"{DURABILITY}log_that_grows",
    ),
    m(
        "R-D3: more copied than logged stops everything",
        "database.py",
        "if done > log:",
        "if False:",
        f"{SHARING}more_frames_copied_than_logged",
    ),
    m(
        "a checkpoint whose sync failed stops everything",
        "database.py",
        "if _primary_code(error) == sqlite3.SQLITE_IOERR:",
        "if False:",
        f"{DURABILITY}checkpoint_whose_sync_failed",
    ),
)

ORDER_AND_FORKS = (
    m(
        "R-B1: a stopped holder is bypassed",
        "database.py",
        "self.bypasses += not held\n",
        "self.bypasses += not held\n                assert held\n",
        f"{TURNSTILE}stopped_holder",
    ),
    m(
        "R-B1: bypasses are counted",
        "database.py",
        "self.bypasses += not held\n",
        "pass\n",
        f"{TURNSTILE}stopped_holder",
    ),
    m(
        "R-B1: whom it waited for in vain it does not wait for again",
        "turnstile.py",
        "if left <= 0 or seen == self._given_up:",
        "if left <= 0:",
        f"{TURNSTILE}waited_for_in_vain",
    ),
    m(
        "R-B1: a leaver wakes who sleeps",
        "turnstile.py",
        "_FUTEX_WAKE_OP: Final = 5",
        "_FUTEX_WAKE_OP: Final = 99",
        f"{TURNSTILE}leaver_wakes_who_sleeps",
    ),
    m(
        "R-B1: a leaver changes the number first",
        "turnstile.py",
        "1 << 28 | 2 << 24 | 1 << 12 | 0x800",
        "1 << 28 | 2 << 24 | 0x800",
        f"{TURNSTILE}between_the_try_and_the_sleep",
    ),
    m(
        "R-B1: the gate is given back",
        "turnstile.py",
        "            self._gate.give()\n",
        "            pass\n",
        f"{TURNSTILE}turn_is_one_writers",
    ),
    m(
        "R-B2: a thread never waits for itself",
        "database.py",
        "if mark in _inside or connection.in_transaction:",
        "if connection.in_transaction:",
        f"{ENQUEUE}second_queue_on_the_same_file_in_the_same_thread",
    ),
    m(
        "R-B2: a read inside a transaction is refused",
        "database.py",
        "with self._using() as handle:\n            if handle.connection.in_transaction:",
        "with self._using() as handle:\n            if False:",
        f"{ENQUEUE}every_call_without_tx_is_refused",
    ),
    m(
        "R-B3: a child does not end its parent's transaction",
        "connection.py",
        "self.is_inherited = True",
        "self.is_inherited = False",
        f"{SHARING}forked_inside_a_transaction",
    ),
    m(
        "R-B3: no connection crosses a fork",
        "connection.py",
        "if not handle.connection.in_transaction:\n",
        "if False:\n",
        f"{FORK}acknowledged_in_a_forked_child",
    ),
    m(
        "R-B3: a child has an identity of its own",
        "database.py",
        "def forget(self) -> None:\n",
        "def forget(self) -> None:\n        return\n",
        f"{SHARING}identity_of_its_own",
    ),
    m(
        "tx= of another file, or that has ended, is refused",
        "database.py",
        "            tx.check_open(self.path)\n            return tx",
        "            return tx",
        f"{ENQUEUE}a_transaction_of_another or transaction_that_has_ended",
    ),
    m(
        "an error of the caller's block stays the caller's",
        "database.py",
        "except sqlite3.Error as error:\n                if not handle.is_inherited:",
        "except (OSError, sqlite3.Error) as error:\n"
        "                if isinstance(error, OSError):\n"
        "                    raise FileRefused(str(error)) from error\n"
        "                if not handle.is_inherited:",
        f"{ENQUEUE}error_of_the_callers_block",
    ),
)

LEASES = (
    m(
        "a free byte of another file proves nothing",
        "jobs.py",
        "and holder.file == liveness.file",
        "",
        f"{LIVENESS}free_byte_of_another_file",
    ),
    m(
        "a byte that nobody can hold proves nothing",
        "liveness.py",
        "BYTE_FIRST <= byte < BYTE_END and ",
        "",
        f"{LIVENESS}damaged_row_of_a_worker",
    ),
    m(
        "one descriptor holds, another tests",
        "liveness.py",
        "self._test = open_lock_file(self._path)",
        "self._test = os.dup(self._hold)",
        f"{LIVENESS}held_byte_is_seen_as_held",
    ),
    m(
        "locks that only pretend are not relied upon",
        "liveness.py",
        "if self.file and not self._self_test():",
        "if False:",
        f"{LIVENESS}only_pretend",
    ),
    m(
        "a lock file that was replaced is noticed",
        "liveness.py",
        "return self._same_file() == self.file and (",
        "return True or (",
        f"{LIVENESS}deleted_or_replaced_file",
    ),
    m(
        "the heartbeat heals the identity",
        "jobs.py",
        "if liveness is not None and not liveness.is_sound():",
        "if False:",
        f"{LIVENESS}healed_by_the_next_heartbeat",
    ),
    m(
        "other clocks are not compared",
        "jobs.py",
        "elif holder.clock == self.host.clock.ident():",
        "elif True:",
        f"{LIVENESS}lease_of_unknown_clock",
    ),
    m(
        "a foreign lease is watched before it is believed dead",
        "jobs.py",
        "self._watched[job.id] = (job.fence, deadline_ns, now_ns)\n            return False",
        "self._watched[job.id] = (job.fence, deadline_ns, now_ns)\n            return True",
        f"{LIVENESS}lease_of_unknown_clock",
    ),
    m(
        "the watch has a margin",
        "jobs.py",
        "* (1 + WATCH_MARGIN)",
        "* 1",
        f"{LIVENESS}lease_of_unknown_clock",
    ),
    m(
        "an extension begins the watch anew",
        "jobs.py",
        "seen[:2] != (job.fence, deadline_ns)",
        "seen[0] != job.fence",
        f"{LIVENESS}extension_begins_the_watch_anew",
    ),
    m(
        "a new claim begins the watch anew",
        "jobs.py",
        "seen[:2] != (job.fence, deadline_ns)",
        "seen[1] != deadline_ns",
        f"{LIVENESS}new_claim_begins_the_watch_anew",
    ),
    m(
        "leases are on the monotonic clock",
        "jobs.py",
        "deadline_ns = clock.monotonic_ns() + lease",
        "deadline_ns = clock.now_ms() * 1_000_000 + lease",
        f"{LIVENESS}step_of_the_wall_clock",
    ),
    m(
        "time namespaces are part of the clock's name",
        "clock.py",
        'offsets = "/".join(_text(TIME_NAMESPACE).split())',
        'offsets = ""',
        f"{LIVENESS}boot_and_time_namespace",
    ),
    m(
        "deaths are seen by who never claimed",
        "jobs.py",
        "                self.database.liveness = self.host.lock.liveness(self.path)\n"
        "            return self.database.liveness",
        "                life = self.host.lock.liveness(self.path)\n"
        "                life.file = life.file if self._full_last and self._identity else ''\n"
        "                self.database.liveness = life\n"
        "            return self.database.liveness",
        f"{LIVENESS}never_claimed_sees_deaths",
    ),
    m(
        "leaving gives the leases back",
        "jobs.py",
        'self._end(tx, lease, "release", "available", "released")\n            tx.change',
        "pass\n            tx.change",
        f"{OUTCOMES}closing_gives_back",
    ),
    m(
        "leaving takes the row away before the byte",
        "jobs.py",
        '            tx.change(self.UNREGISTER, {"id": identity.id})\n',
        "",
        f"{LIVENESS}byte_comes_before_the_row",
    ),
    m(
        "the row stays while a lease names it",
        "jobs.py",
        "WHERE id = :id\n           AND NOT EXISTS (SELECT 1 FROM job WHERE state = 'leased' AND"
        " owner = worker.id)",
        "WHERE id = :id",
        f"{LIVENESS}still_seen_to_be_a_dead",
    ),
    m(
        "a byte that a handler has freed ends no closing",
        "liveness.py",
        "with suppress(OSError):  # A handler has closed the descriptor",
        "if True:  # A handler has closed the descriptor",
        f"{LIVENESS}closing_after_a_handler",
    ),
    m(
        "a rolled back registration is repeated",
        "jobs.py",
        "if new or again:",
        "if new:",
        f"{LIVENESS}rolled_back_registers_again",
    ),
    m(
        "the dead are forgotten, the living are not",
        "jobs.py",
        "if self._is_dead(holder) or (foreign",
        "if True or (foreign",
        f"{LIVENESS}rows_of_workers_that_are_gone",
    ),
)

STATEMENTS = (
    m(
        "an outcome names the fence",
        "jobs.py",
        "         WHERE id = :id AND fence = :fence AND owner = :worker AND state = 'leased'\n"
        "           AND lease_deadline_ns <= :before_ns",
        "         WHERE id = :id AND owner = :worker AND state = 'leased'\n"
        "           AND lease_deadline_ns <= :before_ns",
        f"{OUTCOMES}lease_that_is_not_current",
        quick=True,
    ),
    m(
        "the reaper names the owner",
        "jobs.py",
        "         WHERE id = :id AND fence = :fence AND owner = :worker AND state = 'leased'\n"
        "           AND lease_deadline_ns <= :before_ns",
        "         WHERE id = :id AND fence = :fence AND state = 'leased'\n"
        "           AND lease_deadline_ns <= :before_ns",
        f"{LIVENESS}reaper_repeats",
    ),
    m(
        "the reaper names the deadline it believes",
        "jobs.py",
        "AND state = 'leased'\n           AND lease_deadline_ns <= :before_ns",
        "AND state = 'leased'",
        f"{LIVENESS}reaper_repeats",
    ),
    m(
        "an extension names the fence",
        "jobs.py",
        "SET lease_deadline_ns = :deadline_ns, updated_ms = :now_ms\n"
        "         WHERE id = :id AND fence = :fence AND owner",
        "SET lease_deadline_ns = :deadline_ns, updated_ms = :now_ms\n"
        "         WHERE id = :id AND owner",
        f"{OUTCOMES}lease_that_is_not_current",
    ),
    m(
        "completing asks for the fence before the block",
        "jobs.py",
        "            if not tx.row(self.IS_CURRENT, _fenced(lease)):",
        "            if False:",
        f"{OUTCOMES}lease_that_is_not_current",
    ),
    m(
        "a repeated ack is harmless",
        "jobs.py",
        '!= ("succeeded",):',
        '!= ("never",):',
        f"{OUTCOMES}ack_repeated",
    ),
    m(
        "the last failure is the end",
        "jobs.py",
        "if permanent or job.attempt >= job.max_attempts:",
        "if permanent:",
        f"{OUTCOMES}last_one_kills",
    ),
    m(
        "the last crash is the end",
        "jobs.py",
        "        if job.attempt >= job.max_attempts:\n            state",
        "        if False:\n            state",
        "tests/reports/test_killed_while_working.py::one_attempt_starts_once",
    ),
    m(
        "the first crash goes back at once",
        "jobs.py",
        "elif job.crashes:",
        "elif True:",
        f"{LIVENESS}first_crash_goes_back_at_once",
    ),
    m(
        "later crashes wait by the policy",
        "jobs.py",
        "elif job.crashes:",
        "elif False:",
        f"{LIVENESS}first_crash_goes_back_at_once",
    ),
    m(
        "a snooze is no attempt",
        "jobs.py",
        "IN ('released', 'snoozed', 'held')",
        "IN ('released')",
        f"{OUTCOMES}snooze_is_no_attempt",
    ),
    m(
        "a delayed job is not promoted early",
        "jobs.py",
        "WHERE state IN ('scheduled', 'retryable') AND due_ms <= :now_ms\n"
        "                       ORDER",
        "WHERE state IN ('scheduled', 'retryable') AND due_ms <= :now_ms + 1\n"
        "                       ORDER",
        f"{ENQUEUE}takes_no_later_one_with_it",
    ),
    m(
        "nothing is promoted before something is due",
        "jobs.py",
        "WHERE state IN ('scheduled', 'retryable') AND due_ms <= :now_ms\n         ORDER",
        "WHERE state IN ('scheduled', 'retryable') AND due_ms < :now_ms\n         ORDER",
        f"{ENQUEUE}not_claimed_a_millisecond_early",
    ),
    m(
        "a delay is rounded up",
        "model.py",
        "math.ceil(seconds * 1_000)",
        "math.floor(seconds * 1_000)",
        f"{ENQUEUE}not_claimed_a_millisecond_early",
    ),
    m(
        "a batch of claims stops at its limit",
        "jobs.py",
        "if len(taken) == limit or not (row",
        "if not (row",
        f"{CLAIM}stops_at_its_limit",
    ),
    m(
        "one call promotes a bounded number",
        "jobs.py",
        '{"now_ms": now_ms, "limit": SWEEP_ROWS_MAX}',
        '{"now_ms": now_ms, "limit": 1 << 30}',
        f"{CLAIM}promotes_a_bounded_number",
    ),
    m(
        "an empty poll takes no lock",
        "jobs.py",
        "if not self._full_last and not self._looks_claimable(wanted):",
        "if False:",
        f"{CLAIM}empty_poll_takes_no_write_lock",
    ),
    m(
        "an idle wait sees a job fall due",
        "jobs.py",
        "            if next_moment_ms is not None and next_moment_ms <= clock.now_ms():\n"
        "                return True\n",
        "",
        f"{CLAIM}wait_ends_when_a_job_falls_due",
    ),
    m(
        "a claim that finds an expired job passes it over",
        "jobs.py",
        "if row[_EXPIRES] is not None and cast(int, row[_EXPIRES]) <= now_ms:",
        "if False:",
        f"{DEADLINE}however_many_expire_at_once",
    ),
    m(
        "a throttled kind is not claimed by its name",
        "jobs.py",
        "         WHERE wanted.value NOT IN (SELECT kind FROM throttle)\n"
        '         ORDER BY priority, due_ms, job.id LIMIT 1"""\n\n    FIRST_OF_ALL',
        '         ORDER BY priority, due_ms, job.id LIMIT 1"""\n\n    FIRST_OF_ALL',
        f"{DEADLINE}nothing_is_claimed_of_a_kind_that_is_throttled",
    ),
    m(
        "a throttled kind is not claimed among all",
        "jobs.py",
        "         WHERE wanted.value NOT IN (SELECT kind FROM throttle)\n"
        '         ORDER BY priority, due_ms, job.id LIMIT 1"""\n\n    CLAIM',
        '         ORDER BY priority, due_ms, job.id LIMIT 1"""\n\n    CLAIM',
        f"{DEADLINE}nothing_is_claimed_of_a_kind_that_is_throttled",
    ),
    m(
        "a claim that a limit refuses is no lease",
        "jobs.py",
        "            if changed:  # Else",
        "            if True:  # Else",
        "tests/unit/test_limits.py::a_closing_ends_when_it_should",
    ),
    m(
        "who waits for a throttled kind does not spin",
        "jobs.py",
        "           AND wanted.value NOT IN (SELECT kind FROM throttle)\n         LIMIT 1",
        "         LIMIT 1",
        f"{DEADLINE}does_not_ask_for_the_write_lock",
    ),
    m(
        "an idle wait sees a lease run out",
        "jobs.py",
        "            if self._any_lost(holders):\n                return True\n",
        "",
        f"{CLAIM}wait_ends_when_a_lease_runs_out",
    ),
)

WAKING = (
    m(
        "waking: the count is read before the look",
        "jobs.py",
        "partial(arrivals.wait, count, classes)",
        "partial(arrivals.wait, arrivals.read(), classes)",
        f"{WAKES}lost_between_the_look_and_the_sleep",
    ),
    m(
        "waking: a commit wakes who is idle",
        "database.py",
        "arrivals.advance(done.offers, done.kinds)",
        "arrivals.read()",
        f"{WAKES}enqueue_wakes_an_idle_worker",
    ),
    m(
        "waking: one job wakes one worker",
        "turnstile.py",
        "_FUTEX_WAKE_BITSET, count, third=kinds)",
        "_FUTEX_WAKE_BITSET, 1000, third=kinds)",
        f"{WAKES}one_job_wakes_one",
    ),
    m(
        "waking: of those alone who look for its kind",
        "turnstile.py",
        "_FUTEX_WAKE_BITSET, count, third=kinds)",
        "_FUTEX_WAKE_BITSET, count, third=ALL_KINDS)",
        f"{WAKES}worker_of_other_kinds",
    ),
    m(
        "waking: a job given back wakes somebody as well",
        "jobs.py",
        'if state in ("available", "retryable", "scheduled"):',
        "if False:",
        f"{WAKES}whatever_lets_a_job_be_claimed",
    ),
    m(
        "waking: who is woken in vain backs off",
        "jobs.py",
        "woken, vain_pause = False, min(max(vain_pause * 2, VAIN_PAUSE_FIRST), IDLE_PAUSE)",
        "woken, vain_pause = False, VAIN_PAUSE_FIRST",
        f"{WAKES}woken_in_vain",
    ),
    m(
        "waking: a stop ends the wait",
        "jobs.py",
        "            if until():\n                return False\n",
        "",
        f"{WAKES}wait_ends_soon_after",
    ),
    m(
        "waking: and the pause after a vain wake-up",
        "jobs.py",
        "                if until():\n                    return False\n",
        "",
        f"{WAKES}follows_a_vain_wake_up",
    ),
    m(
        "waking: a blocked step wakes nobody",
        "jobs.py",
        'if values["state"] != "blocked":',
        "if True:",
        f"{WAKES}not_for_those_that_wait",
    ),
)

PREFETCH = (
    m(
        "prefetch: a cancelled job is not started",
        "../prefetching.py",
        "if not self._queue.is_current(lease):",
        "if False:",
        f"{PREFETCHES}cancelled_while_it_waited",
    ),
    m(
        "prefetch: nor one whose deadline has passed",
        "../prefetching.py",
        "if expires_ms is not None and expires_ms <= self._clock.now_ms():",
        "if False:",
        f"{PREFETCHES}deadline_passed_while_it_waited",
    ),
    m(
        "prefetch: what waits is renewed",
        "../prefetching.py",
        "seconds = self._roster.beat()",
        "seconds = 1.0",
        f"{PREFETCHES}lease_of_what_waits_is_renewed",
    ),
    m(
        "prefetch: no ack waits for a long handler",
        "../prefetching.py",
        ">= KEEP_SECONDS * 1e9:",
        ">= 1e18:",
        f"{PREFETCHES}no_ack_waits",
    ),
    m(
        "prefetch: the next look is when an ack is due",
        "../prefetching.py",
        "return min(seconds, max(0.0, KEEP_SECONDS - kept_seconds))",
        "return min(seconds, KEEP_SECONDS)",
        f"{PREFETCHES}has_looked_just_before",
    ),
    m(
        "prefetch: who leaves waits for the acks that are being written",
        "../prefetching.py",
        "with self._writing:",
        "if True:",
        f"{PREFETCHES}leaves_waits_for",
    ),
    m(
        "prefetch: an error loses no ack that was kept back",
        "../prefetching.py",
        "if kind is not None:",
        "if False:",
        f"{PREFETCHES}ends_by_an_error",
    ),
    m(
        "prefetch: a busy file ends no worker",
        "../worker.py",
        'except TRANSIENT as error:\n                self._note_transient("look',
        'except FloatingPointError as error:\n                self._note_transient("look',
        f"{PREFETCHES}looked_at_ends_no",
    ),
    m(
        "prefetch: a stop gives back at once",
        "../prefetching.py",
        "if self._is_stopping():",
        "if False:",
        f"{PREFETCHES}does_not_wait_for_the_handler",
    ),
    m(
        "prefetch: a suspect is claimed alone",
        "jobs.py",
        "suspects_alone=True",
        "suspects_alone=False",
        f"{CLAIM}never_waits_with_others",
    ),
)

TEXTS = (
    m(
        "a payload is strict JSON",
        "model.py",
        "allow_nan=False",
        "allow_nan=True",
        f"{ENQUEUE}payload_that_is_not_json",
    ),
    m(
        "a payload can be decoded from a deep stack",
        "model.py",
        "brackets > PAYLOAD_DEPTH_MAX and",
        "False and",
        f"{ENQUEUE}payload_that_is_not_json",
    ),
    m(
        "a payload has a largest size",
        "model.py",
        "if size > PAYLOAD_BYTES_MAX:",
        "if False:",
        f"{ENQUEUE}one_byte_over_the_limit",
    ),
    m(
        "a NUL in an error is spelled out",
        "model.py",
        '.replace("\\0", "\\\\x00")',
        "",
        f"{OUTCOMES}no_error_is_too_odd",
    ),
    m(
        "an error whose text raises is recorded",
        "model.py",
        "except BaseException as error:  # The failure path",
        "except ZeroDivisionError as error:  # The failure path",
        f"{OUTCOMES}no_error_is_too_odd",
    ),
    m(
        "an error has a largest length",
        "model.py",
        "if len(text) > ERROR_CHARS_MAX:",
        "if False:",
        f"{OUTCOMES}no_error_is_too_odd",
    ),
    m(
        "a bool is no number",
        "model.py",
        "not isinstance(number, int) or isinstance(number, bool) or",
        "not isinstance(number, int) or",
        f"{ENQUEUE}wrong_option_is_refused",
    ),
    m(
        "a naive moment is refused",
        "model.py",
        "if moment.tzinfo is None:",
        "if False:",
        f"{ENQUEUE}wrong_option_is_refused",
    ),
    m(
        "no number of attempts overflows a policy",
        "retry.py",
        "min(max(attempt, 1), EXPONENT_MAX)",
        "max(attempt, 1)",
        f"{RETRY}hundred_thousand",
    ),
    m(
        "a damaged policy does not lose the job",
        "jobs.py",
        "        except ValueError:\n            return retry.delay_ms",
        "        except ZeroDivisionError:\n            return retry.delay_ms",
        f"{OUTCOMES}retry_policy_damaged",
    ),
    m(
        "a row that breaks a check is put aside by the claim",
        "jobs.py",
        "self._set_aside(tx, cast(int, row[0]), error)\n                continue",
        "raise",
        f"{SCHEMA}damaged_row_never_stops",
    ),
    m(
        "a payload that can not be decoded stops nobody",
        "jobs.py",
        "except (ValueError, TypeError, RecursionError) as error:\n                # One row",
        "except ZeroDivisionError as error:\n                # One row",
        f"{SCHEMA}damaged_row_never_stops",
    ),
    m(
        "a row that breaks a check is put aside by the promotion",
        "jobs.py",
        "except sqlite3.IntegrityError:  # A damaged row among them",
        "except ZeroDivisionError:  # A damaged row among them",
        f"{SCHEMA}damaged_row_never_stops",
    ),
    m(
        "bytes that are no UTF-8 stop nobody",
        "database.py",
        'connection.text_factory = partial(str, encoding="utf-8", errors="backslashreplace")',
        "pass",
        f"{SCHEMA}damaged_row_never_stops",
    ),
    m(
        "nothing hides in an assert",
        "jobs.py",
        "                changed = tx.change(self.CANCEL, values)\n"
        "                assert changed == 1",
        "                assert tx.change(self.CANCEL, values) == 1",
        f"{SHARING}no_operation_hides_in_an_assert",
    ),
)

FOUND_BY_REPORTS = (
    m(
        "B68: a log that a reader pins is said",
        "database.py",
        "if busy and handle.log_bytes > self._log_bytes_told:",
        "if False:",
        f"{REPORTS}logs_that_grow.py::pins_is_said",
    ),
    m(
        "B71: growth counts from the size that the log was cut back to",
        "database.py",
        "handle.log_bytes = min(handle.log_bytes, size)",
        "pass",
        f"{REPORTS}logs_that_grow.py::shrinks_without_a_restart",
    ),
    m(
        "B80: a volatile overlay is known in its newer spelling too",
        "barrier.py",
        '{"volatile", "fsync=volatile"}',
        '{"volatile"}',
        f"{FILES}the_file_system_under_a_path",
    ),
    m(
        "B82: the database behind the log is the one that was opened",
        "barrier.py",
        "os.readlink(self._link), database",
        "os.readlink(self._link), 0",
        f"{REPORTS}damage_and_silent_loss.py::replaced_under_us and restored",
    ),
    m(
        "B62: a lock error inside of a transaction is ours",
        "database.py",
        '    sqlite3.SQLITE_BUSY: (DatabaseBusy, "nothing was changed; try again"),\n',
        "",
        f"{REPORTS}locked_files.py::lock_error_at_any_statement",
    ),
    m(
        "lock files have the mode of the database, whatever the umask",
        "turnstile.py",
        "os.fchmod(descriptor, status.st_mode & 0o666)",
        "pass",
        f"{REPORTS}surroundings.py::strict_umask",
    ),
)

MUTATIONS = (
    *OPENING,
    *BARRIER,
    *CHECKPOINTS,
    *ORDER_AND_FORKS,
    *LEASES,
    *STATEMENTS,
    *WAKING,
    *PREFETCH,
    *TEXTS,
    *FOUND_BY_REPORTS,
)


def run_tests(sources: Path, tests: Iterable[str], seconds_max: float) -> tuple[int, str]:
    """Run these tests on these sources; return pytest's exit code and its last words.

    In a fork of this process, which has pytest loaded and the queue not: a start costs nothing.
    """
    files, words = set(), set()
    for test in tests:
        file, _, word = test.partition("::")
        files.add(str(ROOT / file))
        words.add(word)
    arguments = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
    arguments += ["-k", " or ".join(sorted(words)), *sorted(files)]
    with tempfile.TemporaryFile() as output:
        pid = os.fork()
        if pid == 0:
            for descriptor in (1, 2):
                os.dup2(output.fileno(), descriptor)
            roots = [str(sources / root) for root in SOURCE_ROOTS]
            sys.path[:0] = roots
            sys.dont_write_bytecode = True
            # For the processes that the tests start.
            os.environ |= {"PYTHONPATH": os.pathsep.join(roots), "PYTHONDONTWRITEBYTECODE": "1"}
            os.chdir(ROOT)
            status = 99
            try:
                status = int(pytest.main(arguments))
                sys.stdout.flush()
            finally:
                os._exit(status)
        status = wait_for(pid, seconds_max)
        output.seek(0)
        said = output.read().decode(errors="replace").strip().splitlines()
    return status, said[-1] if said else "nothing was said"


def wait_for(pid: int, seconds_max: float) -> int:
    """Return the exit code; that of failed tests for who hangs, or kills itself."""
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else TESTS_FAILED
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return TESTS_FAILED


def is_missed(mutation: Mutation, sources: Path) -> str | None:
    """Take one guard away; return None if its test went red, else what is wrong."""
    file = sources / CORE / mutation.file
    text = file.read_text(encoding="utf-8")
    if text.count(mutation.guard) != 1:
        return f"the guard is there {text.count(mutation.guard)} times in {mutation.file}, not once"
    file.write_text(text.replace(mutation.guard, mutation.instead), encoding="utf-8")
    try:
        status, said = run_tests(sources, [mutation.test], SECONDS_MAX)
    finally:
        file.write_text(text, encoding="utf-8")
    return None if status == TESTS_FAILED else f"not missed by {mutation.test}: {said}"


def main() -> int:
    """Run the table; 0 when every guard is missed by its test."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("word", nargs="?", default="", help="only guards whose name holds it")
    parser.add_argument("--quick", action="store_true", help="only the few of the suite")
    options = parser.parse_args()
    chosen = [
        mutation
        for mutation in MUTATIONS
        if options.word in mutation.name and (mutation.quick or not options.quick)
    ]
    if not chosen:
        print(f"no guard's name holds {options.word!r}: leave it out to see them all")
        return 64
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder)
        for root in SOURCE_ROOTS:
            shutil.copytree(
                ROOT / root, sources / root, ignore=shutil.ignore_patterns("__pycache__")
            )
        for file in sorted({mutation.test.partition("::")[0] for mutation in chosen}):
            tests = [mutation.test for mutation in chosen if mutation.test.startswith(file)]
            status, said = run_tests(sources, tests, HEALTHY_SECONDS_MAX)
            if status != 0:
                print(f"{file} is red without any mutation: {said}")
                return 1
        wrong = 0
        for mutation in chosen:
            problem = is_missed(mutation, sources)
            wrong += problem is not None
            print(f"{'ok ' if problem is None else 'BAD'} {mutation.name}", flush=True)
            if problem is not None:
                print(f"    {problem}", flush=True)
    print(f"{len(chosen) - wrong} of {len(chosen)} guards are missed when they are taken away")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
