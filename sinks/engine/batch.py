"""Summary of a batch before decoding: its span, its DDLs, and which tables it touches at which schema version. Pure.

Promises: ``summarise`` may run on any split of the batch, and ``merge`` of the results gives the summary of the whole. So
executors summarise their partitions, and the driver receives only a few rows.
"""

import struct
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.errors import ProtocolViolation
from schemas.events import Op, as_time
from schemas.findings import Finding, FindingKind
from schemas.stages import ROW_EVENT
from sinks.engine.segments import DdlEvent, TableActivity

PARTIAL = pa.schema(
    [
        pa.field("interval", pa.int64()),
        pa.field("table_id", pa.int64()),
        pa.field("schema_version", pa.int64()),
        pa.field("first_ts", pa.int64()),
        pa.field("last_ts", pa.int64()),
        pa.field("events", pa.int64()),
        pa.field("bytes", pa.int64()),
    ]
)
"""One row per (interval, table_id, schema_version) of row events; ``interval`` counts the DDL binlogs with a lower commit_ts."""


SUMMARY = 110
"""``op`` of a control row that summarises the row changes of one Arrow batch: ``commit_ts`` is their first one, ``row`` holds ``_REST``."""

_REST = struct.Struct("<qqq")
"""Last commit_ts, events, bytes."""

_TRANSACTIONS = -1
"""``table_id`` of the summary row whose ``events`` is the number of transactions of an Arrow batch."""


@dataclass(frozen=True, slots=True)
class Controls:
    """The punctuation and the DDL binlogs of a batch: its span (from_ts, to_ts] and its barriers by commit_ts."""

    from_ts: int
    to_ts: int
    ddls: tuple[DdlEvent, ...]
    findings: tuple[Finding, ...] = ()
    """Lost binlogs: those that the Pumps no longer hold."""


@dataclass(frozen=True, slots=True)
class RowSummary:
    """The row changes of a batch: which tables they touch, by first commit_ts, and its numbers of row events and transactions."""

    touches: tuple[TableActivity, ...]
    events: int
    transactions: int = 0

    @property
    def bytes(self) -> int:
        """Size of the row images."""
        return sum(touch.bytes for touch in self.touches)


def control_mask(events: pa.Table) -> pa.ChunkedArray:
    """True where an event is a DDL or punctuation, not a row change."""
    return pc.greater_equal(events.column("op"), int(Op.DDL))


def controls_of(events: pa.Table) -> Controls:
    """The controls among ``events`` (schema ``ROW_EVENT``).

    Raises:
        ProtocolViolation: the batch carries no punctuation, or punctuations of different spans.
    """
    spans: set[tuple[int, int]] = set()
    ddls: dict[int, DdlEvent] = {}
    findings: list[Finding] = []
    for event in events.filter(control_mask(events)).to_pylist():
        if event["op"] == SUMMARY:
            continue
        if event["op"] == Op.RESOLVED:
            spans.add((event["schema_version"], event["commit_ts"]))
        elif event["op"] == Op.LOST:
            findings.append(Finding(FindingKind.LOST, (event["row"] or b"").decode("utf-8", "replace"), commit_ts=event["commit_ts"]))
        else:
            query = (event["row"] or b"").decode("utf-8", "replace")
            # Keyed by commit_ts, because two Pumps may deliver the same DDL.
            ddls[event["commit_ts"]] = DdlEvent(event["commit_ts"], event["table_id"], query, event["schema_version"])
    if len(spans) != 1:
        raise ProtocolViolation(f"a batch must carry exactly one span of resolved_ts, this one carries {sorted(spans)}")
    from_ts, to_ts = next(iter(spans))
    return Controls(from_ts, to_ts, tuple(ddls[ts] for ts in sorted(ddls)), tuple(findings))


def summarise(events: pa.Table, ddl_ts: Sequence[int]) -> pa.Table:
    """The ``PARTIAL`` summary of the row changes among ``events``; ``ddl_ts`` ascending."""
    rows = events.filter(pc.invert(control_mask(events)))
    interval = np.searchsorted(np.array(ddl_ts, dtype=np.int64), rows.column("commit_ts").to_numpy(), side="left")
    sized = rows.select(["table_id", "schema_version", "commit_ts"])
    sized = sized.append_column("interval", pa.array(interval.astype(np.int64))).append_column(
        "bytes", pc.binary_length(rows.column("row"))
    )
    grouped = sized.group_by(["interval", "table_id", "schema_version"]).aggregate(
        [("commit_ts", "min"), ("commit_ts", "max"), ("commit_ts", "count"), ("bytes", "sum")]
    )
    names = ("interval", "table_id", "schema_version", "commit_ts_min", "commit_ts_max", "commit_ts_count", "bytes_sum")
    return pa.table([pc.cast(grouped.column(name), pa.int64()) for name in names], schema=PARTIAL)


def summary_rows(events: pa.Table) -> pa.Table:
    """The summary of ``events`` as control rows (schema ``ROW_EVENT``), to be sent along with them."""
    found = summarise(events, ()).to_pylist()
    rows = [
        {
            "commit_ts": part["first_ts"],
            "seq": 0,
            "op": SUMMARY,
            "table_id": part["table_id"],
            "schema_version": part["schema_version"],
            "row": _REST.pack(part["last_ts"], part["events"], part["bytes"]),
        }
        for part in found
    ]
    transactions = count_transactions(events)
    if found:
        rows.append(rows[0] | {"table_id": _TRANSACTIONS, "row": _REST.pack(rows[0]["commit_ts"], transactions, 0)})
    return pa.Table.from_pylist(rows, schema=ROW_EVENT)


def count_transactions(events: pa.Table) -> int:
    """How many transactions begin in ``events``: a huge one may extend over several Arrow batches, but has only one first row change."""
    return int(np.count_nonzero((events.column("seq").to_numpy() == 0) & ~control_mask(events).to_numpy()))


def summary_of(controls: pa.Table, after_ts: int, ddl_ts: Sequence[int]) -> RowSummary | None:
    """The row changes after ``after_ts`` according to the summary rows in ``controls``; None when one spans a DDL or ``after_ts``."""
    partials = []
    transactions = 0
    for event in controls.filter(pc.equal(controls.column("op"), SUMMARY)).to_pylist():
        first, (last, events, size) = event["commit_ts"], _REST.unpack(event["row"])
        if event["table_id"] == _TRANSACTIONS:
            transactions += events
            continue
        interval = bisect_left(ddl_ts, first)
        if interval != bisect_left(ddl_ts, last) or first <= after_ts < last:
            return None
        if first > after_ts:
            partials.append((interval, event["table_id"], event["schema_version"], first, last, events, size))
    columns = list(zip(*partials, strict=True)) or [()] * len(PARTIAL)
    return replace(merge(pa.table([pa.array(c, pa.int64()) for c in columns], schema=PARTIAL)), transactions=transactions)


def merge(partials: pa.Table) -> RowSummary:
    """The summary of the whole batch from the concatenated partial ones."""
    touched: dict[tuple[int, int, int], list[int]] = {}
    for part in partials.to_pylist():
        seen = touched.setdefault((part["interval"], part["table_id"], part["schema_version"]), [part["first_ts"], part["last_ts"], 0, 0])
        seen[:] = [min(seen[0], part["first_ts"]), max(seen[1], part["last_ts"]), seen[2] + part["events"], seen[3] + part["bytes"]]
    made = (TableActivity(table, version, first, n, last, size) for (_, table, version), (first, last, n, size) in touched.items())
    touches = sorted(made, key=_by_first)
    return RowSummary(tuple(touches), sum(t.events for t in touches))


def _by_first(touch: TableActivity) -> tuple[int, int]:
    return touch.first_commit_ts, touch.schema_version


def rows_between(events: pa.Table, after_ts: int, upto_ts: int) -> pa.Table:
    """The row changes with ``after_ts < commit_ts <= upto_ts``."""
    commit_ts = events.column("commit_ts")
    inside = pc.and_(pc.greater(commit_ts, after_ts), pc.less_equal(commit_ts, upto_ts))
    return events.filter(pc.and_(inside, pc.invert(control_mask(events))))


def without(events: pa.Table, name: str, values: Collection[int]) -> pa.Table:
    """``events`` except those whose column ``name`` has one of ``values``."""
    if not values:
        return events
    return events.filter(pa.array(~np.isin(events.column(name).to_numpy(), list(values))))


def gap_text(after_ts: int, commit_ts: int, checkpoint_dir: str) -> str:
    """The error text when Spark's checkpoint is ahead of the target's, and what to do."""
    return (
        f"the stream would continue after {after_ts} ({as_time(after_ts)}), but the target's checkpoint is {commit_ts} "
        f"({as_time(commit_ts)}): the binlogs in between would be lost. Was the target restored from a backup, including its checkpoint row? "
        f"Then delete Spark's checkpoint directory {checkpoint_dir}: the stream reads again from the target's row, provided the Pumps "
        "still hold the binlogs of that time; if they do not, restore a newer backup. If only the row was changed, restore its value"
    )
