"""``sinks.engine.batch``: what a batch holds, summarised in any cut."""

from dataclasses import replace

import pyarrow as pa
import pytest

from schemas.errors import ProtocolViolation
from schemas.events import Op
from schemas.findings import FindingKind
from schemas.stages import ROW_EVENT
from sinks.engine.batch import RowSummary, controls_of, merge, rows_between, summarise, summary_of, summary_rows
from sinks.engine.segments import DdlEvent, TableActivity


def events(*rows: tuple[int, Op, int, int, bytes | None]) -> pa.Table:
    names = ("commit_ts", "op", "table_id", "schema_version", "row")
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) | {"seq": 0} for row in rows], schema=ROW_EVENT)


BATCH = events(
    (10, Op.INSERT, 1, 5, b"abc"),
    (11, Op.UPDATE, 1, 5, b"de"),
    (12, Op.DDL, 99, 5, b"ALTER TABLE t"),
    (13, Op.DELETE, 1, 6, b"f"),
    (14, Op.INSERT, 2, 5, b""),
    (20, Op.RESOLVED, 0, 9, None),
)


def test_controls_are_the_span_and_the_ddls() -> None:
    controls = controls_of(BATCH)
    assert (controls.from_ts, controls.to_ts) == (9, 20)
    assert controls.ddls == (DdlEvent(12, 99, "ALTER TABLE t", 5),)


def test_the_same_ddl_from_two_pumps_is_one() -> None:
    assert len(controls_of(pa.concat_tables([BATCH, BATCH])).ddls) == 1


def test_a_lost_span_is_told() -> None:
    lost = events((15, Op.LOST, 0, 9, b"Pump a: gone"), (20, Op.RESOLVED, 0, 9, None))
    assert [(f.kind, f.words) for f in controls_of(lost).findings] == [(FindingKind.LOST, "Pump a: gone")]


@pytest.mark.parametrize("wrong", [BATCH.slice(0, 5), pa.concat_tables([BATCH, events((21, Op.RESOLVED, 0, 9, None))])])
def test_a_batch_without_exactly_one_span_is_refused(wrong: pa.Table) -> None:
    with pytest.raises(ProtocolViolation, match="exactly one span"):
        controls_of(wrong)


@pytest.mark.parametrize("cut", range(7))
def test_any_cut_gives_the_same_summary(cut: int) -> None:
    parts = pa.concat_tables([summarise(BATCH.slice(0, cut), [12]), summarise(BATCH.slice(cut), [12])])
    summary = merge(parts)
    assert summary.touches == (TableActivity(1, 5, 10, 2, 11, 5), TableActivity(1, 6, 13, 1, 13, 1), TableActivity(2, 5, 14, 1, 14, 0))
    assert summary.events == 4


def test_touches_do_not_cross_a_ddl() -> None:
    both = events((10, Op.INSERT, 1, 5, b"a"), (13, Op.INSERT, 1, 5, b"b"))
    assert merge(summarise(both, [12])).touches == (TableActivity(1, 5, 10, 1, 10, 1), TableActivity(1, 5, 13, 1, 13, 1))


def test_rows_between_leaves_controls_out() -> None:
    assert rows_between(BATCH, 10, 13).column("commit_ts").to_pylist() == [11, 13]


def test_summaries_travel_with_their_rows() -> None:
    parts = [BATCH.slice(0, 2), BATCH.slice(2)]
    marks = pa.concat_tables([pa.concat_tables([part, summary_rows(part)]) for part in parts])
    assert controls_of(marks) == controls_of(BATCH)
    assert summary_of(marks, 9, [12]) == replace(merge(summarise(BATCH, [12])), transactions=4)
    assert summary_of(marks, 11, [12]) == replace(merge(summarise(BATCH.slice(2), [12])), transactions=4)


def test_a_summary_across_a_barrier_is_no_answer() -> None:
    marks = summary_rows(BATCH)
    assert summary_of(marks, 10, []) is None
    assert summary_of(marks, 9, [10]) is None


def test_no_summaries_are_an_empty_answer() -> None:
    assert summary_of(BATCH.slice(2, 1), 9, [12]) == RowSummary((), 0)


def test_a_transaction_in_pieces_is_counted_once() -> None:
    """A huge one lies in several Arrow batches; only one of them has its first row change."""
    rows = [{"commit_ts": 10, "seq": seq, "op": int(Op.INSERT), "table_id": 1, "schema_version": 5, "row": b"a"} for seq in range(4)]
    whole = pa.Table.from_pylist(rows, schema=ROW_EVENT)
    marks = pa.concat_tables([summary_rows(whole.slice(n, 1)) for n in range(4)])
    found = summary_of(marks, 9, [])
    assert found is not None and (found.transactions, found.events) == (1, 4)
