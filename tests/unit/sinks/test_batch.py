"""``sinks.engine.batch``: what a batch holds, summarised in any cut."""

import pyarrow as pa
import pytest

from pyspark_tidb_binlog.schemas.errors import ProtocolViolation
from pyspark_tidb_binlog.schemas.events import ControlType, Op
from pyspark_tidb_binlog.schemas.findings import FindingKind
from pyspark_tidb_binlog.schemas.stages import CONTROL, DDL_EVENT, ROW_EVENT, ROW_SUMMARY
from pyspark_tidb_binlog.sinks.engine.batch import PARTIAL, RowSummary, controls_of, merge, placed, rows_between, summarise
from pyspark_tidb_binlog.sinks.engine.segments import DdlEvent, TableActivity


def changes(*rows: tuple[int, Op, int, int, bytes]) -> pa.Table:
    names = ("commit_ts", "op", "table_id", "schema_version", "row")
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) | {"seq": 0} for row in rows], schema=ROW_EVENT)


def controls(*rows: tuple[ControlType, int, int, bytes | None]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(CONTROL.names, row, strict=True)) for row in rows], schema=CONTROL)


BATCH = changes((10, Op.INSERT, 1, 5, b"abc"), (11, Op.UPDATE, 1, 5, b"de"), (13, Op.DELETE, 1, 6, b"f"), (14, Op.INSERT, 2, 5, b""))
DDLS = pa.Table.from_pylist([{"commit_ts": 12, "job_id": 99, "schema_state": 5, "query": b"ALTER TABLE t"}], schema=DDL_EVENT)
SPAN = controls((ControlType.RESOLVED, 9, 20, None))


def test_controls_are_the_span_and_the_ddls() -> None:
    found = controls_of(SPAN, DDLS)
    assert (found.after_ts, found.upto_ts) == (9, 20)
    assert found.ddls == (DdlEvent(12, 99, "ALTER TABLE t", 5),)


def test_a_setval_is_no_barrier() -> None:
    one = {"commit_ts": 11, "job_id": 98, "schema_state": 5, "query": b"SELECT SETVAL(`d`.`s`, 3);"}
    found = controls_of(SPAN, pa.concat_tables([pa.Table.from_pylist([one], schema=DDL_EVENT), DDLS]))
    assert [d.commit_ts for d in found.ddls] == [11, 12] and found.barriers == [12]


def test_the_same_ddl_and_punctuation_from_two_pumps_are_one() -> None:
    assert controls_of(pa.concat_tables([SPAN, SPAN]), pa.concat_tables([DDLS, DDLS])) == controls_of(SPAN, DDLS)


def test_a_lost_span_is_told() -> None:
    lost = pa.concat_tables([controls((ControlType.LOST, 9, 15, b"Pump a: gone")), SPAN])
    (finding,) = controls_of(lost, DDLS).findings
    assert (finding.kind, finding.words, finding.commit_ts) == (FindingKind.LOST, "Pump a: gone", 15)


@pytest.mark.parametrize("wrong", [CONTROL.empty_table(), pa.concat_tables([SPAN, controls((ControlType.RESOLVED, 9, 21, None))])])
def test_a_batch_without_exactly_one_span_is_refused(wrong: pa.Table) -> None:
    with pytest.raises(ProtocolViolation, match="exactly one span"):
        controls_of(wrong, DDLS)


@pytest.mark.parametrize("cut", range(5))
def test_any_cut_gives_the_same_summary(cut: int) -> None:
    parts = pa.concat_tables([summarise(BATCH.slice(0, cut), [12]), summarise(BATCH.slice(cut), [12])])
    summary = merge(parts)
    assert summary.tables == (TableActivity(1, 5, 10, 2, 11, 5), TableActivity(1, 6, 13, 1, 13, 1), TableActivity(2, 5, 14, 1, 14, 0))
    assert (summary.events, summary.transactions, summary.bytes) == (4, 4, 6)


def test_activity_does_not_cross_a_ddl() -> None:
    both = changes((10, Op.INSERT, 1, 5, b"a"), (13, Op.INSERT, 1, 5, b"b"))
    assert merge(summarise(both, [12])).tables == (TableActivity(1, 5, 10, 1, 10, 1), TableActivity(1, 5, 13, 1, 13, 1))


def test_rows_between_are_those_of_the_half_open_span() -> None:
    assert rows_between(BATCH, 10, 13).column("commit_ts").to_pylist() == [11, 13]


def summaries(*parts: pa.Table) -> pa.Table:
    """What executors send along with the rows, each Arrow batch for itself."""
    return pa.concat_tables([summarise(part, ()) for part in parts]).select(ROW_SUMMARY.names).cast(ROW_SUMMARY)


def test_summaries_of_arrow_batches_are_placed_between_the_ddls() -> None:
    sent = summaries(BATCH.slice(0, 2), BATCH.slice(2))
    for after_ts, rows in ((9, BATCH), (11, BATCH.slice(2))):
        found = placed(sent, after_ts, [12])
        assert found is not None and found.schema == PARTIAL
        assert merge(found) == merge(summarise(rows, [12]))


def test_a_summary_across_a_barrier_is_no_answer() -> None:
    sent = summaries(BATCH)
    assert placed(sent, 10, []) is None
    assert placed(sent, 9, [10]) is None


def test_no_summaries_are_an_empty_answer() -> None:
    found = placed(ROW_SUMMARY.empty_table(), 9, [12])
    assert found is not None and merge(found) == RowSummary((), 0, 0, 0)


def test_a_transaction_in_pieces_is_counted_once() -> None:
    """A huge one lies in several Arrow batches; only one of them has its first row change."""
    rows = [{"commit_ts": 10, "seq": seq, "op": int(Op.INSERT), "table_id": 1, "schema_version": 5, "row": b"a"} for seq in range(4)]
    whole = pa.Table.from_pylist(rows, schema=ROW_EVENT)
    found = placed(summaries(*(whole.slice(n, 1) for n in range(4))), 9, [])
    assert found is not None
    assert (merge(found).transactions, merge(found).events) == (1, 4)
