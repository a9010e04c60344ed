"""What a power cut may leave, clause by clause, on logs written by hand."""

import os
import random
from collections.abc import Iterable, Mapping

from killproof_chaos.engines.disk_model import (
    SECTOR_BYTES,
    Disk,
    Tape,
    World,
    compile_tape,
    digest,
)
from killproof_chaos.engines.disk_policy import Policy
from killproof_chaos.shim.calls import File, Kind
from killproof_chaos.shim.log import NO_KEY, Begin, End, FileKey, Note, Record, Seen

ROOT = "/queue"
DATABASE = FileKey(1, 10, 1)
LOG = FileKey(1, 11, 1)
NEW_LOG = FileKey(1, 11, 2)
FOLDER = FileKey(1, 2, 1)
DRAWS = 200


class Log:
    """Writes records by hand: each call returns its number, to be ended later or at once."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._begins: list[Begin] = []

    def begin(
        self,
        kind: Kind,
        key: FileKey = DATABASE,
        *,
        name: str = "",
        target: str = "",
        at: int = 0,
        data: bytes = b"",
        length: int = 0,
        flags: int = 0,
        file: File = File.DATABASE,
        slot: int = 0,
    ) -> int:
        call = len(self._begins)
        record = Begin(
            seq=len(self.records), slot=slot, pid=1, thread=1, time_ns=0, call=call, number=0,
            kind=kind, file=file, key=key, path=f"{ROOT}/{name}" if name else "",
            target=f"{ROOT}/{target}" if target else "", at=at, length=length or len(data),
            flags=flags, data=data,
        )  # fmt: skip
        self._begins.append(record)
        self.records.append(record)
        return call

    def end(
        self, call: int, *, error: int = 0, at: int | None = None, key: FileKey | None = None,
        result: int | None = None,
    ) -> None:  # fmt: skip
        begin = self._begins[call]
        done = len(begin.data) if result is None else result
        self.records.append(
            End(
                seq=len(self.records), slot=begin.slot, pid=1, thread=1, time_ns=0, call=call,
                number=0, kind=begin.kind, file=begin.file, key=key or begin.key,
                at=begin.at if at is None else at, length=0, result=done, error=error,
                injected=False,
            )
        )  # fmt: skip

    def write(self, data: bytes, *, at: int = 0, key: FileKey = DATABASE) -> None:
        self.end(self.begin(Kind.WRITE, key, at=at, data=data))

    def sync(self, key: FileKey = DATABASE) -> None:
        self.end(self.begin(Kind.FDATASYNC, key))

    def open(self, name: str, key: FileKey, *, flags: int = os.O_RDWR | os.O_CREAT) -> None:
        self.end(self.begin(Kind.OPEN, NO_KEY, name=name, flags=flags), key=key)

    def sync_folder(self) -> None:
        self.end(
            self.begin(Kind.OPEN, FOLDER, name=".", file=File.DIRECTORY), key=FOLDER
        )  # fmt: skip
        self.end(self.begin(Kind.FSYNC, FOLDER, file=File.DIRECTORY))

    def note(self, text: bytes) -> None:
        self.records.append(
            Note(seq=len(self.records), slot=0, pid=1, thread=1, time_ns=0, text=text)
        )


def tape_of(
    log: Log,
    initial: Mapping[str, tuple[FileKey, bytes]] | None = None,
    world: World = World.HAPPENED,
    settled: Mapping[tuple[int, int], int] | None = None,
    deaths: Mapping[int, int] | None = None,
) -> Tape:
    files = {"q.db": (DATABASE, b"")} if initial is None else initial
    return compile_tape(
        log.records, root=ROOT, initial=files, world=world, settled=settled, deaths=deaths
    )


def cut(tape: Tape, policy: Policy, *, step: int | None = None, seed: int = 0) -> dict[str, bytes]:
    """Return the files after a cut behind this step, the last one when it is not given."""
    disk = Disk(tape)
    disk.play(len(tape.steps) - 1 if step is None else step)
    return disk.image(policy, random.Random(seed))


def drawn(tape: Tape, policy: Policy, name: str = "q.db") -> set[bytes | None]:
    """Return every content of the file that the policy can leave."""
    return {cut(tape, policy, seed=seed).get(name) for seed in range(DRAWS)}


def test_a_write_that_ended_before_a_sync_began_is_there_under_every_policy() -> None:
    log = Log()
    log.write(b"kept")
    log.sync()

    assert all(cut(tape_of(log), policy) == {"q.db": b"kept"} for policy in Policy)


def test_a_write_that_began_before_a_sync_and_ended_after_its_begin_is_not_durable() -> None:
    log = Log()
    write = log.begin(Kind.WRITE, data=b"late")
    sync = log.begin(Kind.FDATASYNC)
    log.end(write)
    log.end(sync)

    assert cut(tape_of(log), Policy.DROP) == {"q.db": b""}
    assert cut(tape_of(log), Policy.KEEP) == {"q.db": b"late"}


def test_a_sync_makes_nothing_durable_before_it_has_ended() -> None:
    log = Log()
    log.write(b"data")
    log.begin(Kind.FDATASYNC)

    assert cut(tape_of(log), Policy.DROP) == {"q.db": b""}


def test_a_cut_while_a_sync_is_under_way_may_take_what_it_syncs() -> None:
    log = Log()
    log.write(b"data")
    sync = log.begin(Kind.FDATASYNC)
    log.write(b"other", key=LOG)
    log.end(sync)

    assert cut(tape_of(log), Policy.DROP, step=1) == {"q.db": b""}
    assert cut(tape_of(log), Policy.DROP) == {"q.db": b"data"}


def test_a_sync_that_failed_makes_nothing_durable() -> None:
    log = Log()
    log.write(b"data")
    log.end(log.begin(Kind.FDATASYNC), error=5)

    assert cut(tape_of(log), Policy.DROP) == {"q.db": b""}


def test_what_a_failed_sync_was_to_write_is_not_made_durable_by_the_next() -> None:
    log = Log()
    log.write(b"data")
    log.end(log.begin(Kind.FDATASYNC), error=5)
    log.write(b"D")
    log.sync()

    assert cut(tape_of(log), Policy.DROP) == {"q.db": b"D"}
    assert cut(tape_of(log), Policy.KEEP) == {"q.db": b"Data"}


def test_a_sync_of_one_file_leaves_another_pending() -> None:
    log = Log()
    log.write(b"data")
    log.sync(LOG)
    tape = tape_of(log, {"q.db": (DATABASE, b""), "q.db-wal": (LOG, b"")})

    assert cut(tape, Policy.DROP) == {"q.db": b"", "q.db-wal": b""}


def test_a_write_that_failed_never_happened() -> None:
    log = Log()
    log.end(log.begin(Kind.WRITE, data=b"data"), error=28)

    assert cut(tape_of(log), Policy.KEEP) == {"q.db": b""}


def test_a_short_write_wrote_what_it_returned() -> None:
    log = Log()
    log.end(log.begin(Kind.WRITE, data=b"data"), result=2)

    assert cut(tape_of(log), Policy.KEEP) == {"q.db": b"da"}


def test_an_appended_write_goes_where_its_end_says() -> None:
    log = Log()
    log.end(log.begin(Kind.WRITE, at=-1, data=b"data"), at=3)

    assert cut(tape_of(log), Policy.KEEP) == {"q.db": b"\0\0\0data"}


def test_a_write_under_way_may_be_on_the_disk_already() -> None:
    log = Log()
    write = log.begin(Kind.WRITE, data=b"data")
    log.write(b"other", key=LOG)
    log.end(write)

    assert cut(tape_of(log), Policy.KEEP, step=0) == {"q.db": b"data"}
    assert cut(tape_of(log), Policy.DROP, step=0) == {"q.db": b""}


def test_a_later_durable_write_lies_on_top_of_an_earlier_pending_one() -> None:
    log = Log()
    early = log.begin(Kind.WRITE, data=b"early")
    log.write(b"LATE", at=0)
    log.sync()
    log.end(early)

    assert cut(tape_of(log), Policy.KEEP) == {"q.db": b"LATEy"}
    assert cut(tape_of(log), Policy.DROP) == {"q.db": b"LATE"}


def test_a_subset_leaves_each_combination_of_pending_writes() -> None:
    log = Log()
    log.write(b"a")
    log.write(b"b", at=1)

    assert drawn(tape_of(log), Policy.SUBSET) == {b"", b"a", b"\0b", b"ab"}


def test_a_torn_write_leaves_whole_sectors_by_their_place_in_the_file() -> None:
    log = Log()
    log.write(b"x" * SECTOR_BYTES, at=SECTOR_BYTES // 2)
    half, zeros = b"x" * (SECTOR_BYTES // 2), bytes(SECTOR_BYTES // 2)

    assert drawn(tape_of(log), Policy.TORN) == {
        b"", zeros + half, zeros + zeros + half, zeros + half + half
    }  # fmt: skip


def test_late_leaves_the_newest_writes_and_never_an_older_one_alone() -> None:
    log = Log()
    log.write(b"a")
    log.write(b"b", at=1)

    assert drawn(tape_of(log), Policy.LATE) == {b"\0b", b"ab"}


def test_late_keeps_no_name_that_is_not_durable() -> None:
    log = Log()
    log.open("q.db-wal", LOG)
    log.write(b"frames", key=LOG)

    assert drawn(tape_of(log), Policy.LATE, "q.db-wal") == {None}


def test_files_leaves_each_file_whole_or_as_it_was() -> None:
    log = Log()
    log.write(b"a")
    log.write(b"frames", key=LOG)
    log.write(b"b", at=1)
    tape = tape_of(log, {"q.db": (DATABASE, b""), "q.db-wal": (LOG, b"")})
    found = {tuple(cut(tape, Policy.FILES, seed=seed).values()) for seed in range(DRAWS)}

    assert found == {(b"", b""), (b"ab", b""), (b"", b"frames"), (b"ab", b"frames")}


def test_an_allocation_never_makes_a_file_shorter() -> None:
    log = Log()
    log.end(log.begin(Kind.ALLOCATE, at=1, length=1))
    longer = tape_of(log, {"q.db": (DATABASE, b"abc")})

    assert cut(longer, Policy.KEEP) == {"q.db": b"abc"}
    assert cut(tape_of(log), Policy.KEEP) == {"q.db": b"\0\0"}


def test_a_truncate_that_was_not_synced_may_be_missing() -> None:
    log = Log()
    log.end(log.begin(Kind.TRUNCATE, length=2))
    tape = tape_of(log, {"q.db": (DATABASE, b"long")})

    assert cut(tape, Policy.KEEP) == {"q.db": b"lo"}
    assert cut(tape, Policy.DROP) == {"q.db": b"long"}
    assert drawn(tape, Policy.METADATA) == {b"lo", b"long"}


def test_metadata_may_lack_the_size_or_have_it_before_the_data() -> None:
    log = Log()
    log.write(b"new", at=3)
    found = drawn(tape_of(log, {"q.db": (DATABASE, b"old")}), Policy.METADATA)

    assert {b"old", b"oldnew", b"old\0\0\0"} <= found
    assert all(content is not None and content.startswith(b"old") for content in found)


def test_a_new_name_is_durable_only_after_a_sync_of_its_folder() -> None:
    log = Log()
    log.open("q.db-wal", LOG)
    log.write(b"frames", key=LOG)
    log.sync(LOG)
    alone = tape_of(log)
    log.sync_folder()

    assert cut(alone, Policy.DROP) == {"q.db": b""}
    assert drawn(alone, Policy.METADATA, "q.db-wal") == {None, b"frames"}
    assert cut(tape_of(log), Policy.DROP) == {"q.db": b"", "q.db-wal": b"frames"}


def test_a_name_made_while_its_folder_is_being_synced_is_not_durable() -> None:
    log = Log()
    log.end(log.begin(Kind.OPEN, FOLDER, name=".", file=File.DIRECTORY), key=FOLDER)
    sync = log.begin(Kind.FSYNC, FOLDER, file=File.DIRECTORY)
    log.open("q.db-wal", LOG)
    log.end(sync)

    assert cut(tape_of(log), Policy.DROP) == {"q.db": b""}
    assert cut(tape_of(log), Policy.KEEP) == {"q.db": b"", "q.db-wal": b""}


def test_an_unlink_may_be_undone_until_its_folder_is_synced() -> None:
    log = Log()
    log.end(log.begin(Kind.UNLINK, LOG, name="q.db-wal"))
    initial = {"q.db-wal": (LOG, b"old")}
    alone = tape_of(log, initial)
    log.sync_folder()

    assert cut(alone, Policy.KEEP) == {}
    assert cut(alone, Policy.DROP) == {"q.db-wal": b"old"}
    assert cut(tape_of(log, initial), Policy.DROP) == {}


def test_a_file_made_anew_under_its_old_name_is_another_file() -> None:
    log = Log()
    log.end(log.begin(Kind.UNLINK, LOG, name="q.db-wal"))
    log.open("q.db-wal", NEW_LOG)
    log.write(b"new", key=NEW_LOG)
    log.sync(NEW_LOG)
    tape = tape_of(log, {"q.db-wal": (LOG, b"old")})

    assert cut(tape, Policy.KEEP) == {"q.db-wal": b"new"}
    assert cut(tape, Policy.DROP) == {"q.db-wal": b"old"}
    assert drawn(tape, Policy.METADATA, "q.db-wal") == {b"old", None, b"new"}


def test_a_name_that_another_process_makes_while_an_unlink_is_being_logged_stays() -> None:
    log = Log()
    unlink = log.begin(Kind.UNLINK, LOG, name="q.db-wal")
    log.open("q.db-wal", NEW_LOG)
    log.end(unlink)
    log.write(b"new", key=NEW_LOG)

    tape = tape_of(log, {"q.db-wal": (LOG, b"old")})
    assert cut(tape, Policy.KEEP) == {"q.db-wal": b"new"}


def test_an_open_that_is_logged_after_the_unlink_of_its_file_gives_no_name_back() -> None:
    log = Log()
    late = log.begin(Kind.OPEN, NO_KEY, name="q.db-wal", flags=os.O_RDWR | os.O_CREAT)
    log.end(log.begin(Kind.UNLINK, LOG, name="q.db-wal"))
    log.end(late, key=LOG)

    assert cut(tape_of(log, {"q.db-wal": (LOG, b"old")}), Policy.KEEP) == {}


def test_an_unlink_is_durable_only_if_it_had_ended_before_the_sync_of_its_folder_began() -> None:
    log = Log()
    unlink = log.begin(Kind.UNLINK, LOG, name="q.db-wal")
    log.sync_folder()
    log.end(unlink)

    assert cut(tape_of(log, {"q.db-wal": (LOG, b"old")}), Policy.DROP) == {"q.db-wal": b"old"}


def test_an_open_of_a_file_that_is_there_changes_no_name() -> None:
    log = Log()
    log.open("q.db", DATABASE)

    assert tape_of(log).steps == ()


def test_a_descriptor_that_no_recorded_open_made_binds_the_name_it_is_seen_under() -> None:
    log = Log()
    log.records.append(Seen(seq=0, slot=0, pid=1, file=File.WAL, key=LOG, path=f"{ROOT}/q.db-wal"))
    log.write(b"frames", key=LOG)

    assert cut(tape_of(log), Policy.KEEP) == {"q.db": b"", "q.db-wal": b"frames"}


def test_a_folder_that_is_not_durable_takes_with_it_what_is_durable_in_it() -> None:
    log = Log()
    inner = FileKey(1, 3, 1)
    log.end(log.begin(Kind.MKDIR, inner, name="bodies", file=File.DIRECTORY))
    log.open("bodies/1", LOG)
    log.write(b"body", key=LOG)
    log.sync(LOG)
    log.end(log.begin(Kind.FSYNC, inner, file=File.DIRECTORY))
    alone = tape_of(log)
    log.sync_folder()

    assert cut(alone, Policy.DROP) == {"q.db": b""}
    assert cut(tape_of(log), Policy.DROP) == {"q.db": b"", "bodies/1": b"body"}


def test_a_rename_replaces_its_target_or_leaves_it() -> None:
    log = Log()
    log.end(log.begin(Kind.RENAME, LOG, name="fresh", target="q.db"))
    tape = tape_of(log, {"q.db": (DATABASE, b"old"), "fresh": (LOG, b"new")})

    assert cut(tape, Policy.KEEP) == {"q.db": b"new"}
    assert cut(tape, Policy.DROP) == {"q.db": b"old", "fresh": b"new"}


def test_a_rename_from_one_folder_to_another_is_durable_when_both_were_synced() -> None:
    log = Log()
    other = FileKey(1, 3, 1)
    initial = {"fresh": (LOG, b"new"), "in/kept": (DATABASE, b"")}
    log.end(log.begin(Kind.OPEN, other, name="in", file=File.DIRECTORY), key=other)
    log.end(log.begin(Kind.RENAME, LOG, name="fresh", target="in/moved"))
    log.end(log.begin(Kind.FSYNC, other, file=File.DIRECTORY))
    half = tape_of(log, initial)
    log.sync_folder()

    assert cut(half, Policy.DROP) == {"fresh": b"new", "in/kept": b""}
    assert cut(tape_of(log, initial), Policy.DROP) == {"in/kept": b"", "in/moved": b"new"}


def test_an_open_that_is_logged_after_its_file_was_replaced_takes_no_name() -> None:
    log = Log()
    late = log.begin(Kind.OPEN, NO_KEY, name="q.db", flags=os.O_RDWR | os.O_CREAT)
    log.end(log.begin(Kind.RENAME, LOG, name="fresh", target="q.db"))
    log.end(late, key=DATABASE)
    tape = tape_of(log, {"q.db": (DATABASE, b"old"), "fresh": (LOG, b"new")})

    assert cut(tape, Policy.KEEP) == {"q.db": b"new"}


def test_an_open_that_truncates_empties_the_file() -> None:
    log = Log()
    log.open("q.db", DATABASE, flags=os.O_RDWR | os.O_TRUNC)
    tape = tape_of(log, {"q.db": (DATABASE, b"old")})

    assert cut(tape, Policy.KEEP) == {"q.db": b""}
    assert cut(tape, Policy.DROP) == {"q.db": b"old"}


def test_a_write_without_an_end_is_replayed_in_two_worlds() -> None:
    log = Log()
    log.begin(Kind.WRITE, data=b"killed")
    log.sync()

    assert tape_of(log).unended == 1
    assert cut(tape_of(log), Policy.KEEP) == {"q.db": b"killed"}
    assert cut(tape_of(log, world=World.NEVER), Policy.KEEP) == {"q.db": b""}


def test_a_killed_write_is_durable_by_a_sync_that_began_when_its_process_was_dead() -> None:
    log = Log()
    log.begin(Kind.WRITE, data=b"killed")
    log.sync()
    log.sync()

    assert cut(tape_of(log), Policy.DROP) == {"q.db": b""}
    assert cut(tape_of(log, deaths={1: 3}), Policy.DROP) == {"q.db": b""}
    assert cut(tape_of(log, deaths={1: 2}), Policy.DROP) == {"q.db": b"killed"}


def test_who_writes_a_file_of_sqlite_after_a_killed_write_shows_that_it_had_ended() -> None:
    log = Log()
    log.begin(Kind.WRITE, data=b"killed")
    log.end(log.begin(Kind.WRITE, at=6, data=b"!", slot=1))
    log.sync()

    assert cut(tape_of(log), Policy.DROP) == {"q.db": b"killed!"}


def test_what_is_known_of_a_killed_write_holds_in_every_world() -> None:
    log = Log()
    log.begin(Kind.WRITE, data=b"killed")
    tapes = [tape_of(log, world=world, settled={(0, 0): 4}) for world in World]

    assert [tape.unended for tape in tapes] == [0, 0]
    assert [cut(tape, Policy.KEEP) for tape in tapes] == [{"q.db": b"kill"}] * 2


def test_an_unlink_without_an_end_is_replayed_in_two_worlds() -> None:
    log = Log()
    log.begin(Kind.UNLINK, LOG, name="q.db-wal")
    initial = {"q.db-wal": (LOG, b"old")}

    assert cut(tape_of(log, initial), Policy.KEEP) == {}
    assert tape_of(log, initial, World.NEVER).steps == ()


def test_shared_memory_and_locks_are_no_part_of_the_disk() -> None:
    log = Log()
    log.end(log.begin(Kind.WRITE, LOG, data=b"index", file=File.SHM))

    assert tape_of(log).steps == ()


def test_a_note_counts_at_the_last_step_before_it() -> None:
    log = Log()
    log.write(b"a")
    log.note(b"known")
    log.write(b"b")
    tape = tape_of(log)

    assert [tape.notes_before(step) for step in range(2)] == [1, 1]


def test_a_note_that_follows_the_next_step_does_not_count() -> None:
    log = Log()
    log.write(b"a")
    write = log.begin(Kind.WRITE, data=b"b")
    log.note(b"known")
    log.end(write)

    assert [tape_of(log).notes_before(step) for step in range(2)] == [0, 1]


def test_two_images_share_their_digest_if_and_only_if_they_are_equal() -> None:
    images: Iterable[dict[str, bytes]] = ({}, {"a": b""}, {"a": b"x"}, {"b": b"x"}, {"ax": b""})

    assert len({digest(image) for image in images}) == 5
    assert digest({"a": b"1", "b": b"2"}) == digest({"b": b"2", "a": b"1"})
