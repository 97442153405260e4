"""The background writer with tables in memory: what is written, what is left out, what survives a failure."""

import contextlib
import dataclasses
import datetime
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pyspark_tidb_binlog.schemas.errors import ReplicationError
from pyspark_tidb_binlog.schemas.events import tso
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind
from pyspark_tidb_binlog.sinks.delta import checkpoint_table
from pyspark_tidb_binlog.sinks.delta.appended_table import reason_of
from pyspark_tidb_binlog.sinks.delta.checkpoint_table import (
    FILLED_UP,
    FINDINGS_SCHEMA,
    SCHEMA,
    CheckpointRow,
    DeltaCheckpoint,
    Newest,
    as_table,
    findings_as_table,
    joined,
    missing_findings,
    missing_rows,
)
from tests.support.eventually import eventually
from tests.support.killed_fork import in_a_life_that_is_killed

EMPTY = Newest()


class MemoryTable:
    """Commits in a list; fails as often as it is told to."""

    uri = "/delta"

    def __init__(self, newest: Newest = EMPTY, failures: int = 0, commits_although_failing: bool = False) -> None:
        self.commits: list[list[int]] = []
        self.rows: list[CheckpointRow] = []
        self._start = newest
        self._failures = failures
        self._commits_although_failing = commits_although_failing
        self.gate = threading.Event()
        self.gate.set()

    def tidy(self) -> None:
        """There is nothing to tidy."""

    def newest(self, *, of_target: bool) -> Newest:
        ids = [i for c in self.commits for i in c]
        last = self.rows[-1] if self.rows else self._start
        return Newest(max([self._start.batch_id, *ids]), last.resolved_ts, last.recorded_at)

    def append(self, rows: Sequence[CheckpointRow]) -> None:
        self.gate.wait()
        failing, self._failures = self._failures > 0, self._failures - 1
        if failing and not self._commits_although_failing:
            raise OSError("the disk is full\nand more")
        self.commits.append([r.batch_id for r in rows])
        self.rows += rows
        if failing:
            raise OSError("the answer was lost")


def row(batch_id: int, resolved_ts: int = 0, *findings: Finding) -> CheckpointRow:
    return CheckpointRow(batch_id, resolved_ts - 1, resolved_ts or batch_id * 10, findings=findings)


@pytest.fixture
def table() -> MemoryTable:
    return MemoryTable()


@pytest.fixture
def writer(table: MemoryTable) -> Iterator[DeltaCheckpoint]:
    writer = DeltaCheckpoint(table, interval=3600, retry_after=0)
    yield writer
    writer.close()


def test_batches_share_a_commit(writer: DeltaCheckpoint, table: MemoryTable) -> None:
    for i in range(4):
        writer.record(row(i))
    assert writer.pending == 4
    writer.flush()
    assert table.commits == [[0, 1, 2, 3]]
    assert writer.pending == 0
    writer.flush()
    assert len(table.commits) == 1


def test_record_does_not_wait_for_a_write(writer: DeltaCheckpoint, table: MemoryTable) -> None:
    table.gate.clear()
    writer.record(row(0))
    with pytest.raises(ReplicationError, match="1 rows are not in the Delta table /delta"):
        writer.flush(timeout=0.01)
    writer.record(row(1))
    assert writer.pending == 2
    table.gate.set()
    writer.flush()
    assert [i for c in table.commits for i in c] == [0, 1]


def test_a_failed_write_is_reported_and_not_lost() -> None:
    table = MemoryTable(failures=1)
    writer = DeltaCheckpoint(table, interval=3600, retry_after=3600)
    writer.record(row(0))
    with pytest.raises(ReplicationError, match="the disk is full and more; they are kept"):
        writer.flush()
    assert writer.failure is not None
    writer.record(row(1))
    writer.flush()
    assert writer.failure is None
    writer.close()
    assert table.commits == [[0], [1]]


def test_a_commit_whose_answer_was_lost_is_not_written_twice() -> None:
    table = MemoryTable(failures=1, commits_although_failing=True)
    writer = DeltaCheckpoint(table, interval=3600, retry_after=3600)
    writer.fill_up(500, 7)
    writer.record(row(0, 600))
    with pytest.raises(ReplicationError):
        writer.flush()
    writer.record(row(1, 700))
    writer.close()
    assert table.commits == [[FILLED_UP, 0], [1]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "OSError: "),
        (
            "Generic error\n  \x1b[31m↳\x1b[0m Unable to\n   \x1b[31m↳\x1b[0m No space left",
            "OSError: Generic error Unable to No space left",
        ),
    ],
)
def test_an_error_is_told_in_a_line_without_colours(text: str, said: str) -> None:
    assert reason_of(OSError(text)) == said


def test_close_that_cannot_write_says_so() -> None:
    writer = DeltaCheckpoint(MemoryTable(failures=99), interval=3600, retry_after=3600)
    writer.record(row(0))
    with pytest.raises(ReplicationError, match="cannot write 1 rows"):
        writer.close()


def test_close_without_rows_ends_at_once(writer: DeltaCheckpoint, table: MemoryTable) -> None:
    writer.close()
    writer.close()
    assert table.commits == []


@pytest.mark.parametrize(
    ("rows", "newest", "expected"),
    [
        ([row(0), row(1)], Newest(), [0, 1]),
        ([row(3), row(4)], Newest(3, 30), [4]),
        ([row(3), row(3), row(2), row(4)], Newest(), [3, 4]),
        ([row(FILLED_UP, 50), row(9, 60)], Newest(7, 40), [FILLED_UP, 9]),
        ([row(FILLED_UP, 40)], Newest(7, 40), []),
        ([row(0, 90)], Newest(-1, 80), [0]),
        ([row(FILLED_UP, 30), row(8, 35)], Newest(7, 40), [FILLED_UP, 8]),
    ],
)
def test_each_batch_once(rows: list[CheckpointRow], newest: Newest, expected: list[int]) -> None:
    assert [r.batch_id for r in missing_rows(rows, newest)] == expected


def test_filled_up_from_the_target(writer: DeltaCheckpoint, table: MemoryTable) -> None:
    writer.fill_up(500, 7)
    writer.record(row(0, 600))
    writer.flush()
    assert table.commits == [[FILLED_UP, 0]]


class FileTable:
    """Commits as lines of a file, which outlive a process that is killed."""

    uri = "/delta"

    def __init__(self, file: Path) -> None:
        self._file = file
        file.touch()

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self._file.read_text().splitlines()]

    def tidy(self) -> None:
        """There is nothing to tidy."""

    def newest(self, *, of_target: bool) -> Newest:
        *_, last = self.lines() or [[]]
        if not last:
            return Newest()
        return Newest(max(int(line[0]) for line in self.lines()), int(last[1]), datetime.datetime.fromisoformat(last[2]))

    def append(self, rows: Sequence[CheckpointRow]) -> None:
        with self._file.open("a") as file:
            file.writelines(f"{r.batch_id} {r.resolved_ts} {r.recorded_at.isoformat()}\n" for r in rows)


@pytest.mark.parametrize(("die", "found"), [("before-delta:1", [FILLED_UP, 1]), ("after-delta:1", [0, 1])])
def test_a_process_that_is_killed_beside_a_commit_leaves_each_batch_once(die: str, found: list[int], tmp_path: Path) -> None:
    """A start that finds no row of the batch before takes it from the target."""
    table = FileTable(tmp_path / "table")

    def live(first: CheckpointRow | None, *rows: CheckpointRow) -> None:
        with contextlib.closing(DeltaCheckpoint(table, interval=3600)) as writer:
            if first is not None:
                writer.fill_up(first.resolved_ts, 7)
            for each in rows:
                writer.record(each)

    in_a_life_that_is_killed(lambda: live(None, row(0, 10)), die)
    live(row(0, 10), row(1, 20))
    assert [int(line[0]) for line in table.lines()] == found


def test_rows_as_arrow() -> None:
    made = CheckpointRow(5, 1, tso(1_700_000_000_123), 48, False, 10, 2, 1, 99, {"read": 0.5}, ("a loss",))
    found = as_table([made], "app", "target-1")
    assert found.schema == SCHEMA
    values = found.to_pylist()[0]
    assert values["resolved_at"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert (values["timings"], values["bytes"], values["notes"]) == ([("read", 0.5)], 99, ["a loss"])
    assert values["target"] == "target-1"


def test_findings_go_first_and_again_when_they_could_not_be_written(table: MemoryTable) -> None:
    order: list[str] = []

    class Findings:
        def lacking(self, rows: Sequence[CheckpointRow]) -> Sequence[CheckpointRow]:
            return rows

        def append(self, rows: Sequence[CheckpointRow]) -> None:
            order.append(f"findings {[r.batch_id for r in rows]}")
            if len(order) == 1:
                raise OSError("no space")

        def tidy(self) -> None:
            """There is nothing to tidy."""

    writer = DeltaCheckpoint(table, Findings(), interval=0.0, retry_after=0.0)
    writer.record(CheckpointRow(0, 1, 2, findings=(Finding(FindingKind.LOST, "gone"),)))
    with contextlib.suppress(ReplicationError):
        writer.flush()
    writer.close()
    assert order[:2] == ["findings [0]", "findings [0]"]
    assert table.commits == [[0]]


class PanicException(BaseException):
    """As delta-rs raises it."""


class Odd(MemoryTable):
    """Fails in a way that nobody has foreseen."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error, self.fails = error, True

    def append(self, rows: Sequence[CheckpointRow]) -> None:
        if self.fails:
            raise self._error
        super().append(rows)


@pytest.mark.parametrize("error", [AttributeError("'NoneType' object has no attribute 'sc'"), PanicException("index out of bounds")])
def test_an_error_that_nobody_has_foreseen_is_seen_and_retried(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    table = Odd(error)
    with contextlib.closing(DeltaCheckpoint(table, interval=0, retry_after=0)) as writer:
        writer.record(row(0))
        eventually(lambda: writer.failure is not None)
        assert type(error).__name__ in str(writer.failure) and "they are kept and retried" in caplog.text
        assert any(one.exc_info for one in caplog.records), "with its trace"
        for i in (1, 2):
            writer.record(row(i))
        table.fails = False
        eventually(lambda: not writer.pending)
        assert writer.failure is None
    assert [i for commit in table.commits for i in commit] == [0, 1, 2]


class Untidy(MemoryTable):
    """Cannot be tidied."""

    looks = 0

    def tidy(self) -> None:
        self.looks += 1
        raise ValueError("no such table property")


def test_a_table_that_cannot_be_tidied_is_written_still(caplog: pytest.LogCaptureFixture) -> None:
    table = Untidy()
    with contextlib.closing(DeltaCheckpoint(table, interval=0, retry_after=0)) as writer:
        for i in range(2):
            writer.record(row(i))
            eventually(lambda i=i: table.looks == i + 1)  # type: ignore[misc]
    assert table.commits == [[0], [1]] and "could not be compacted" in caplog.text


class Held(MemoryTable):
    """Each append waits for ``gate``, and tidying until it is let go."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__(failures=failures)
        self.order: list[str] = []
        self.begun, self.looked = threading.Event(), threading.Event()

    def append(self, rows: Sequence[CheckpointRow]) -> None:
        self.begun.set()
        super().append(rows)
        self.order.append("append")

    def tidy(self) -> None:
        self.order.append("tidy")
        self.looked.set()


def test_a_table_is_tidied_after_a_commit_that_succeeded() -> None:
    table = Held(failures=1)
    with contextlib.closing(DeltaCheckpoint(table, interval=0.0, retry_after=0.0)) as writer:
        writer.record(row(0))
        assert table.looked.wait(60)
        assert table.order == ["append", "tidy"]


def test_no_table_is_tidied_while_somebody_waits_for_the_next_commit() -> None:
    table = Held()
    table.gate.clear()
    with contextlib.closing(DeltaCheckpoint(table, interval=0.0, retry_after=0.0)) as writer:
        writer.record(row(0))
        assert table.begun.wait(60)
        writer.record(row(1))
        writer.hurry()
        table.gate.set()
        assert table.looked.wait(60)
        assert table.order == ["append", "append", "tidy"]


def test_rows_are_joined_two_by_two() -> None:
    finding = Finding(FindingKind.LOST, "w")
    rows = [
        CheckpointRow(FILLED_UP, 0, 5, notes=("n",)),
        CheckpointRow(0, 5, 10, 1, rows=1, transactions=2, ddls=0, bytes=7, timings={"read": 1.0}, findings=(finding,)),
        CheckpointRow(1, 10, 20, 2, rows=3, transactions=4, ddls=1, bytes=8, timings={"read": 0.5, "apply": 2.0}),
        CheckpointRow(2, 20, 30, 2, findings=(finding,)),
        CheckpointRow(3, 30, 40, 2, findings=(finding,)),
        CheckpointRow(4, 40, 50, 2),
    ]
    filled, first, second, last = joined(rows)
    assert (filled, last) == (rows[0], rows[-1])
    assert (first.batch_id, first.from_ts, first.resolved_ts, first.schema_version) == (1, 5, 20, 2)
    assert (first.rows, first.transactions, first.ddls, first.bytes, first.timings) == (4, 6, 1, 15, {"read": 1.5, "apply": 2.0})
    assert (second.batch_id, second.findings) == (3, (finding, finding)) and first.notes == second.notes != ()
    assert joined([]) == []
    again = joined(joined(rows))
    assert [one.resolved_ts for one in again] == [5, 40, 50] and again[1].notes == first.notes


class Away(MemoryTable):
    """Commits although it raises, and cannot be read for some attempts afterwards."""

    def __init__(self, unreadable: int) -> None:
        super().__init__(failures=1, commits_although_failing=True)
        self.unreadable = unreadable

    def newest(self, *, of_target: bool) -> Newest:
        if self.rows and self.unreadable:
            self.unreadable -= 1
            raise OSError("the disk is away")
        return super().newest(of_target=of_target)


class AwayFindings:
    """The same for findings: which of them each batch has brought."""

    def tidy(self) -> None:
        """There is nothing to tidy."""

    def __init__(self, unreadable: int) -> None:
        self.unreadable = unreadable
        self.failing = True
        self.found: list[tuple[int, str]] = []

    def lacking(self, rows: Sequence[CheckpointRow]) -> Sequence[CheckpointRow]:
        if self.found and self.unreadable:
            self.unreadable -= 1
            raise OSError("the disk is away")
        return missing_findings(rows, max((i for i, _ in self.found), default=-1), 0)

    def append(self, rows: Sequence[CheckpointRow]) -> None:
        self.found += [(r.batch_id, f.words) for r in rows for f in r.findings]
        if self.failing:
            self.failing = False
            raise OSError("the answer was lost")


@pytest.mark.parametrize("first", [4, 5, 6])
@pytest.mark.parametrize("unreadable", [0, 1, 2, 3])
def test_a_commit_that_may_have_succeeded_is_joined_with_nothing_that_came_later(
    first: int, unreadable: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the table cannot be read afterwards: each batch counts once, and so does each finding."""
    monkeypatch.setattr(checkpoint_table, "MOST_ROWS", 8)
    table, findings, sent = Away(unreadable), AwayFindings(unreadable), 60
    writer = DeltaCheckpoint(table, findings, interval=3600, retry_after=3600)
    for i in range(sent):
        words = (Finding(FindingKind.LOST, f"finding {i}"),) if i % 3 == 0 else ()
        writer.record(dataclasses.replace(row(i), rows=1, transactions=2, findings=words))
        if i >= first and i % 7 == first % 7:
            with contextlib.suppress(ReplicationError):
                writer.flush()
    writer.close()
    assert (table.unreadable, findings.unreadable) == (0, 0)
    assert sum(r.rows for r in table.rows) == sent and sum(r.transactions for r in table.rows) == 2 * sent
    assert [
        (one.resolved_ts, two.from_ts) for one, two in zip(table.rows, table.rows[1:], strict=False) if one.resolved_ts > two.resolved_ts
    ] == []
    assert sorted(words for _, words in findings.found) == sorted(f"finding {i}" for i in range(0, sent, 3))


def test_what_waits_while_the_table_cannot_be_written_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_table, "MOST_ROWS", 16)
    table = MemoryTable(failures=1_000_000)
    with contextlib.closing(DeltaCheckpoint(table, interval=0, retry_after=0.001)) as writer:
        for i in range(2000):
            writer.record(row(i))
            if i % 50 == 0:
                eventually(lambda: writer.pending <= 48)
        eventually(lambda: writer.pending <= 48)
        table._failures = 0
        eventually(lambda: not writer.pending)
    assert table.rows[-1].resolved_ts == row(1999).resolved_ts
    assert all(one.from_ts < two.resolved_ts for one, two in zip(table.rows, table.rows[1:], strict=False))


ROWS = Finding(FindingKind.ROWS, "a row was not there", "`d`.`t`", tso(1_700_000_000_123), "id='x'", 1, 0)


@pytest.mark.parametrize(
    ("known", "batches"),
    [
        ((-1, 0), [-1, 3, 5]),
        ((3, 0), [-1, 5]),
        ((5, 0), [-1]),
        ((5, 20), []),
        ((-1, 19), [-1, 3, 5]),
    ],
)
def test_each_batch_with_findings_once(known: tuple[int, int], batches: list[int]) -> None:
    rows = [row(FILLED_UP, 20, ROWS), row(3, 30, ROWS, ROWS), row(4, 40), row(5, 50, ROWS)]
    assert [r.batch_id for r in missing_findings(rows, *known)] == batches


def test_findings_as_arrow() -> None:
    found = findings_as_table(
        [row(7, 90, ROWS, Finding(FindingKind.LOST, "gone"), Finding(FindingKind.ROWS, "one more", wanted=0, found=1))], "app"
    )
    assert found.schema == FINDINGS_SCHEMA
    first, second, third = found.to_pylist()
    assert (third["wanted"], third["found"]) == (0, 1)
    assert (first["app_id"], first["batch_id"], first["kind"], first["key"], first["wanted"], first["found"]) == (
        "app",
        7,
        "rows",
        "id='x'",
        1,
        0,
    )
    assert first["committed_at"].isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert [second[name] for name in ("table", "commit_ts", "committed_at", "key", "wanted", "found", "words")] == [None] * 6 + ["gone"]
