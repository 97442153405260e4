"""Pairing as a Spark operator: one bucket's batch in, complete transactions out. Spark shell around ``pairing.step``.

The state is one value per bucket: ``pairing.pack`` of what waits, absent when nothing does. Each batch brings each bucket at
least one control row, so each bucket is called once per batch, with its pieces in no promised order.
"""

import logging
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues, ValueState

from binlog_source.client import Endpoint
from binlog_source.pairing import RECORD, Span, StepResult, empty_state, pack, step, unpack
from binlog_source.resolver import outcomes_of, tell
from binlog_source.roster import roster_of
from conf import faults
from conf.model import PairConfig, SourceConfig
from schemas.errors import ProtocolViolation
from schemas.events import Op, as_time
from schemas.packed import packed, unpacked
from schemas.stages import RAW, TRANSACTION, TRANSACTIONS

if TYPE_CHECKING:
    # Spark also loads this in a process of its own before the query starts, which has no use for Pandas and would wait for it.
    import pandas as pd

_log = logging.getLogger(__name__)


class PairProcessor(StatefulProcessor):
    """Pairs the records of one bucket per key. Picklable: holds settings only."""

    def __init__(self, source: SourceConfig, pair: PairConfig) -> None:
        self._source, self._pair = source, pair

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the bucket's one state value."""
        self._state: ValueState = handle.getValueState("pairs", "blob BINARY")

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> "Iterator[pd.DataFrame]":
        """One batch of the bucket ``key``."""
        table = unpacked((pa.scalar(value) for piece in rows for value in piece["rows"]), RAW)
        controls = table.filter(pc.greater_equal(table.column("tp"), int(Op.RESOLVED)))
        span, clock_ms = _punctuation(controls, key[0])
        records = table.filter(pc.less(table.column("tp"), int(Op.RESOLVED))).select(RECORD.names).cast(RECORD)
        stored = self._state.get()
        before = unpack(stored[0]) if stored is not None else empty_state()
        result = step(before, records, span, clock_ms, int(self._pair.orphan_ask_after * 1000))
        self._look_after(result)
        if not result.state.empty:
            self._state.update((pack(result.state),))
        elif stored is not None:
            self._state.clear()
        faults.point("pair-state")
        out = [result.released, *self._losses(result, span)]
        if key[0] == 0:
            out.append(_passed_on(controls, span))
        transactions = pa.concat_tables(out)
        if transactions.num_rows:
            yield pa.table([[packed(transactions)]], schema=TRANSACTIONS).to_pandas()

    def _look_after(self, result: StepResult) -> None:
        settles = result.settles + (outcomes_of(result.orphans, self._pair) if result.orphans else ())
        if settles:
            tell(settles, _endpoints(self._source))

    def _losses(self, result: StepResult, span: Span) -> list[pa.Table]:
        """Commits without Prewrite: an error, or with ``failOnDataLoss=false`` a control row each."""
        rows = []
        for start_ts, commit_ts in result.missing:
            text = (
                f"the Commit of start_ts {start_ts}, commit_ts {commit_ts} ({as_time(commit_ts)}) has no Prewrite in any Pump's log, "
                f"though all Pumps promise that the span up to {span.upto_ts} is complete"
            )
            if self._source.fail_on_data_loss:
                raise ProtocolViolation(
                    text + "; look for its Prewrite in the Pumps' logs, or set failOnDataLoss=false to go on without it"
                )
            _log.warning("%s; going on without it because failOnDataLoss=false", text)
            rows.append({"tp": int(Op.LOST), "start_ts": start_ts, "commit_ts": commit_ts, "payload": text.encode()})
        return [pa.Table.from_pylist(rows, schema=TRANSACTION)] if rows else []


def _punctuation(controls: pa.Table, bucket: int) -> tuple[Span, int]:
    """The batch's span and the newest physical time that any Pump's rows showed."""
    resolved = controls.filter(pc.equal(controls.column("tp"), int(Op.RESOLVED)))
    if not resolved.num_rows:
        raise ProtocolViolation(
            f"bucket {bucket} got no control row in this batch: pairingBuckets must not change under one checkpoint directory"
        )
    span = Span(resolved.column("start_ts")[0].as_py(), resolved.column("commit_ts")[0].as_py())
    newest = pc.max(resolved.column("event_time")).cast(pa.int64()).as_py()
    return span, (newest or 0) // 1000


def _passed_on(controls: pa.Table, span: Span) -> pa.Table:
    """Bucket 0's control rows for the steps behind: one punctuation, and what was lost."""
    lost = controls.filter(pc.equal(controls.column("tp"), int(Op.LOST))).select(TRANSACTION.names).cast(TRANSACTION)
    row = {"tp": int(Op.RESOLVED), "start_ts": span.after_ts, "commit_ts": span.upto_ts, "payload": None}
    return pa.concat_tables([lost, pa.Table.from_pylist([row], schema=TRANSACTION)])


@lru_cache(maxsize=8)
def _roster(source: SourceConfig) -> Any:
    return roster_of(source)


def _endpoints(source: SourceConfig) -> dict[str, Endpoint]:
    roster = _roster(source)
    cluster_id = roster.cluster_id()
    return {pump: Endpoint(pump, address, cluster_id) for pump, address in roster.pumps().items()}
