"""One bucket's batch: packed records and kept state in, packed transactions and new state out. The shell around ``pairing.step``.

Promises: nothing of Spark here. Orphans are looked after, and Pumps told, before the new state is given back.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from binlog_source.client import Endpoint
from binlog_source.pairing import RECORD, Span, StepResult, empty_state, pack, step, unpack
from binlog_source.resolver import outcomes_of, tell
from binlog_source.roster import roster_of
from conf.model import PairConfig, SourceConfig
from schemas.errors import ProtocolViolation
from schemas.events import Op, as_time
from schemas.packed import VALUE_BYTES, packed, unpacked
from schemas.stages import RAW, TRANSACTION

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Paired:
    """What a batch made of a bucket. ``state`` is None when nothing waits."""

    state: bytes | None
    transactions: tuple[bytes, ...]
    """Values of ``stages.TRANSACTIONS``, of some megabytes each."""


def pair_bucket(bucket: int, rows: Iterable[bytes], stored: bytes | None, source: SourceConfig, pair: PairConfig) -> Paired:
    """Pair the values ``rows`` (``stages.PACKED``) of one bucket, of which at least one holds a control row.

    Raises:
        ProtocolViolation: no control row, or a Commit whose Prewrite no Pump has.
    """
    table = unpacked(map(pa.scalar, rows), RAW)
    controls = table.filter(pc.greater_equal(table.column("tp"), int(Op.RESOLVED)))
    span, clock_ms = _punctuation(controls, bucket)
    records = table.filter(pc.less(table.column("tp"), int(Op.RESOLVED))).select(RECORD.names).cast(RECORD)
    result = step(unpack(stored) if stored is not None else empty_state(), records, span, clock_ms, int(pair.orphan_ask_after * 1000))
    _look_after(result, source, pair)
    out = [result.released, *_losses(result, span, source)]
    if bucket == 0:
        out.append(_passed_on(controls, span))
    return Paired(None if result.state.empty else pack(result.state), tuple(_cut(pa.concat_tables(out))))


def _cut(transactions: pa.Table) -> Iterator[bytes]:
    """Values of about ``VALUE_BYTES``: what R held back for long comes out of a bucket all at once."""
    rows = max(1, transactions.num_rows * VALUE_BYTES // max(transactions.nbytes, 1))
    for start in range(0, transactions.num_rows, rows):
        yield packed(transactions.slice(start, rows))


def _look_after(result: StepResult, source: SourceConfig, pair: PairConfig) -> None:
    settles = result.settles + (outcomes_of(result.orphans, pair, source) if result.orphans else ())
    if settles:
        tell(settles, _endpoints(source))


def _losses(result: StepResult, span: Span, source: SourceConfig) -> list[pa.Table]:
    """Commits without Prewrite: an error, or with ``failOnDataLoss=false`` a control row each."""
    rows = []
    for start_ts, commit_ts in result.missing:
        text = (
            f"the Commit of start_ts {start_ts}, commit_ts {commit_ts} ({as_time(commit_ts)}) has no Prewrite in any Pump's log, "
            f"though all Pumps promise that the span up to {span.upto_ts} is complete"
        )
        if source.fail_on_data_loss:
            raise ProtocolViolation(text + "; look for its Prewrite in the Pumps' logs, or set failOnDataLoss=false to go on without it")
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
