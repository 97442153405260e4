"""One bucket's batch: takes packed records and the kept state, returns packed transactions and the new state. Shell around ``transitions``
and ``state``.

Promises: does not use Spark. Outcomes are written to Pumps, and orphans looked up, before the new state is returned.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidb_binlog.binlog_source.cluster.discovery import discovery_of
from pyspark_tidb_binlog.binlog_source.cluster.txn_outcome import ASK_AFTER, running_time
from pyspark_tidb_binlog.binlog_source.pairing.resolver import outcomes_of, tell
from pyspark_tidb_binlog.binlog_source.pairing.state import (
    NOTHING,
    Chunks,
    Index,
    PieceStore,
    pack,
    put_away,
    take_up,
    unpack,
    without_rows,
)
from pyspark_tidb_binlog.binlog_source.pairing.transitions import (
    RECORD,
    RELEASED,
    MissingOutcome,
    ResolvedSpan,
    StepResult,
    look_after,
    merged_payloads,
    outcome_records,
    step,
    without_outcome,
)
from pyspark_tidb_binlog.binlog_source.source.delivery import endpoints_of
from pyspark_tidb_binlog.binlog_source.source.late_commits import Asked, ask
from pyspark_tidb_binlog.binlog_source.source.loss import Loss, LossPolicy
from pyspark_tidb_binlog.binlog_source.source.pull import Endpoint
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.errors import ProtocolViolation, PumpUnavailable
from pyspark_tidb_binlog.schemas.events import ControlType, as_time, physical_ms
from pyspark_tidb_binlog.schemas.packed import VALUE_BYTES, packed, unpacked
from pyspark_tidb_binlog.schemas.stages import RAW, TRANSACTION

_AT_ONCE = 1
"""A time, in ms, that every watermark has passed."""
_SECOND = 1000
_ASK_AFTER_MS = int(ASK_AFTER * 1000)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LargeTransaction:
    """A due transaction in pieces."""

    start_ts: int
    commit_ts: int
    first_seqs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Paired:
    """The result of a batch or a timer for one bucket."""

    state: bytes | None
    """``pairing.state.pack`` of the index; None when nothing is kept."""
    timer_ms: int
    """When the bucket's next timer is to fire, by the watermark; 0 = no further timer is to be set."""
    transactions: tuple[bytes, ...] = ()
    """Values of ``stages.TRANSACTIONS``, some megabytes each."""
    huge: tuple[LargeTransaction, ...] = ()
    """Transactions to emit as well, through ``pieces_of``."""


def pair_bucket(
    bucket: int,
    rows: Iterable[bytes],
    stored: bytes | None,
    chunks: Chunks,
    piece_store: PieceStore,
    clock_ms: int,
    source: SourceConfig,
) -> Paired:
    """Pair the values ``rows`` (``stages.PACKED``) of one bucket; at least one holds a control row. ``clock_ms``: the watermark.

    Raises:
        ProtocolViolation: no control row, or no Pump has the Prewrite of a Commit.
    """
    table, arrived = _gathered(rows, piece_store)
    controls = table.filter(table.column("control").is_valid())
    told = _punctuation(controls, bucket)
    span = _without_left_out(told, controls)
    records = table.filter(table.column("control").is_null()).select(RECORD.names).cast(RECORD)
    before = unpack(stored) if stored is not None else NOTHING
    before = replace(before, pieces=_merged(before.pieces, arrived))
    working = take_up(before, chunks, records, span)
    result = step(working.records, records, span)
    losses = LossPolicy(source.fail_on_data_loss)
    if result.unsettled or 0 < result.oldest_alone <= span.upto_ts:
        known_here, found = _departed_outcomes(result.kept, records, before, source)
        if known_here or found:
            # a transaction of which the outcome was known here was released with its Commit
            _committed_before(found, span, losses)
            records = pa.concat_tables([records, outcome_records(known_here + found)])
            working = take_up(before, chunks, records, span)
            result = step(working.records, records, span)
    released, huge = _apart(result.released, before.pieces)
    late = _late(result, source)
    huge += _late_in_pieces(late, piece_store)
    _without_prewrite(result, late, span, losses)
    out = [released, *_late_whole(late), *_lost_rows(losses)]
    if bucket == 0:
        out.append(_passed_on(controls, told))
    after = _without_pieces(put_away(before, working, result.kept, chunks), working.records, records, result.kept, huge, piece_store)
    if result.unsettled:
        _tell_news(before, after, source)
    wake_ms = _wake(before.wake_ms, result, clock_ms)
    timer_ms = wake_ms if wake_ms != before.wake_ms else 0
    return Paired(_packed_index(after, wake_ms), timer_ms, tuple(_cut(pa.concat_tables(out))), huge)


def pieces_of(huge: Iterable[LargeTransaction], piece_store: PieceStore) -> Iterator[bytes]:
    """Values of ``stages.TRANSACTIONS``, one per piece; each piece is removed once it was read."""
    for found in huge:
        for first_seq in found.first_seqs:
            payload = pa.chunked_array([pa.array([piece_store.get(found.start_ts, first_seq)], pa.large_binary())])
            columns = {
                "control": [None],
                "start_ts": [found.start_ts],
                "commit_ts": [found.commit_ts],
                "first_seq": [first_seq],
                "payload": merged_payloads(payload, np.array([found.commit_ts], np.int64)),
            }
            yield packed(pa.table(columns, schema=RELEASED).cast(TRANSACTION))
            piece_store.remove(found.start_ts, first_seq)


def _gathered(values: Iterable[bytes], piece_store: PieceStore) -> tuple[pa.Table, dict[int, tuple[int, ...]]]:
    """The rows of ``values``, and the pieces among them. Pieces go to ``piece_store``; a Prewrite without rows replaces them."""
    tables = [RAW.empty_table()]
    arrived: dict[int, tuple[int, ...]] = {}
    for value in values:
        table = unpacked([pa.scalar(value)], RAW)
        first_seq = table.column("first_seq")
        if first_seq.null_count < len(first_seq):
            is_piece = first_seq.is_valid()
            tables.append(_stubs(table.filter(is_piece), piece_store, arrived))
            table = table.filter(pc.invert(is_piece))
        tables.append(table)
    return pa.concat_tables(tables), arrived


def _stubs(pieces: pa.Table, piece_store: PieceStore, arrived: dict[int, tuple[int, ...]]) -> pa.Table:
    stubs = []
    for row in pieces.to_pylist():
        start_ts, first_seq = row["start_ts"], row["first_seq"]
        piece_store.put(start_ts, first_seq, row["payload"])
        arrived[start_ts] = tuple(sorted({*arrived.get(start_ts, ()), first_seq}))
        if first_seq == 0:
            stubs.append(row | {"payload": without_rows(row["payload"]), "first_seq": None})
    return pa.Table.from_pylist(stubs, schema=RAW)


def _merged(known: Mapping[int, tuple[int, ...]], arrived: Mapping[int, tuple[int, ...]]) -> Mapping[int, tuple[int, ...]]:
    """The known pieces with those that arrived; a copy of a Prewrite has the same pieces."""
    return {**known, **{ts: tuple(sorted({*known.get(ts, ()), *seqs})) for ts, seqs in arrived.items()}} if arrived else known


def _apart(released: pa.Table, pieces: Mapping[int, tuple[int, ...]]) -> tuple[pa.Table, tuple[LargeTransaction, ...]]:
    """The due transactions that are not in pieces; and those that are."""
    if not pieces or not released.num_rows:
        return released, ()
    starts = released.column("start_ts").to_pylist()
    in_pieces = pa.array([ts in pieces for ts in starts])
    commits = released.column("commit_ts").to_pylist()
    huge = tuple(LargeTransaction(ts, commit_ts, pieces[ts]) for ts, commit_ts in zip(starts, commits, strict=True) if ts in pieces)
    return released.filter(pc.invert(in_pieces)), huge


def _without_pieces(
    index: Index, known: pa.Table, records: pa.Table, kept: pa.Table, huge: Sequence[LargeTransaction], piece_store: PieceStore
) -> Index:
    """``index`` without the pieces that are no longer needed: their transaction was judged, and its payload is not kept."""
    if not index.pieces:
        return index
    judged = {*known.column("start_ts").to_pylist(), *records.column("start_ts").to_pylist()} & set(index.pieces)
    needed = set(kept.filter(kept.column("payload").is_valid()).column("start_ts").to_pylist())
    gone = judged - needed
    for start_ts in gone - {found.start_ts for found in huge}:
        for first_seq in index.pieces[start_ts]:
            piece_store.remove(start_ts, first_seq)
    return replace(index, pieces={ts: seqs for ts, seqs in index.pieces.items() if ts not in gone})


def look(stored: bytes | None, clock_ms: int, source: SourceConfig) -> Paired:
    """Handle a timer: look up the outcomes of a bucket's orphans, and write outcomes to the Pumps that wait for them."""
    if stored is None:
        return Paired(None, 0)
    index = unpack(stored)
    wanting = look_after(index.records, clock_ms, _ASK_AFTER_MS)
    now = running_time()
    answers = outcomes_of(wanting.orphans, lambda start_ts: index.waits.waited_ms(start_ts, now), source)
    index = replace(index, waits=index.waits.seen(answers.absent, now))
    settles = wanting.settles + answers.settled
    if settles:
        _tell(settles, source)
    return Paired(_packed_index(index, wanting.again_ms), wanting.again_ms)


def _packed_index(index: Index, wake_ms: int) -> bytes | None:
    index = replace(index, wake_ms=wake_ms)
    return None if index.empty else pack(index)


def _wake(set_for: int, result: StepResult, clock_ms: int) -> int:
    """When the next timer is to fire, given that one is set for ``set_for`` (0 = none): never later than that."""
    wanted = physical_ms(result.oldest_alone) + _ASK_AFTER_MS if result.oldest_alone else 0
    if 0 < wanted <= clock_ms:
        wanted = clock_ms + _SECOND if set_for else _AT_ONCE
    again = clock_ms + _SECOND if result.unsettled else 0
    return min(filter(None, (set_for, wanted, again)), default=0)


def _tell_news(before: Index, after: Index, source: SourceConfig) -> None:
    """Write the outcomes of this batch to their Pumps at once: a Pump that waits for an outcome may hold the watermark. A timer repeats it."""
    known = set(look_after(before.records, 0, 0).settles)
    news = [settle for settle in look_after(after.records, 0, 0).settles if settle not in known]
    if news:
        _tell(news, source)


def _tell(settles: Sequence[MissingOutcome], source: SourceConfig) -> None:
    """Write outcomes to their Pumps. If the registry does not answer, they are written when the next timer fires."""
    try:
        tell(settles, _endpoints(source))
    except PumpUnavailable as error:
        _log.warning("%d outcomes are not written to their Pumps yet: %s", len(settles), error)


def _departed_outcomes(
    kept: pa.Table, records: pa.Table, before: Index, source: SourceConfig
) -> tuple[tuple[MissingOutcome, ...], tuple[MissingOutcome, ...]]:
    """The outcomes of Prewrites from Pumps that have left the cluster: nobody can write them to those Pumps' logs, or read them there.

    First the outcomes that are known here, then those from the upstream. R no longer waits for such a Pump, so the upstream is asked in the same
    batch that passes its last binlogs. A Pump with ``records`` in this batch has not left yet: R is not above its promise.
    """
    silent = set(pc.unique(kept.column("pump")).to_pylist()) - set(pc.unique(records.column("pump")).to_pylist())
    if not silent:
        return (), ()
    try:
        discovery = _discovery(source)
        serving = set(discovery.pumps()) - set(discovery.offline())
    except PumpUnavailable as error:
        _log.warning("the outcomes of Pumps that left are looked up in a later batch, because the registry does not answer: %s", error)
        return (), ()
    departed = silent - serving
    if not departed:
        return (), ()
    settles, orphans = without_outcome(kept, departed)
    now = running_time()
    return settles, outcomes_of(orphans, lambda start_ts: before.waits.waited_ms(start_ts, now), source).settled


def _committed_before(outcomes: Sequence[MissingOutcome], span: ResolvedSpan, losses: LossPolicy) -> None:
    """Transactions whose outcome came after R had passed their commit_ts are lost."""
    for settle in {one.start_ts: one for one in outcomes if 0 < one.commit_ts <= span.after_ts}.values():
        text = (
            f"the transaction of start_ts {settle.start_ts}, which was read from Pump {settle.pump}, committed at {settle.commit_ts} "
            f"({as_time(settle.commit_ts)}). Pump {settle.pump} left before it had the Commit, and the stream has already passed this commit_ts. "
            "The transaction's rows are not in the target"
        )
        losses.lost(Loss.COMMITTED_BEFORE, settle.start_ts, settle.commit_ts, text)


def _lost_rows(losses: LossPolicy) -> list[pa.Table]:
    """A control row of each lost transaction."""
    control = int(ControlType.LOST)
    rows = [
        {"control": control, "start_ts": lost.after_ts, "commit_ts": lost.upto_ts, "payload": lost.text.encode()} for lost in losses.spans
    ]
    return [pa.Table.from_pylist(rows, schema=RELEASED)] if rows else []


def _cut(transactions: pa.Table) -> Iterator[bytes]:
    """Values of about ``VALUE_BYTES``: a bucket may release at once all that R held back for long."""
    rows = max(1, transactions.num_rows * VALUE_BYTES // max(transactions.nbytes, 1))
    for start in range(0, transactions.num_rows, rows):
        yield packed(transactions.slice(start, rows).cast(TRANSACTION))


def _late(result: StepResult, source: SourceConfig) -> Asked:
    """The due Commits without a Prewrite that a Pump has complete: their Prewrite was settled as rolled back before."""
    if not result.missing:
        return Asked((), {})
    try:
        return ask(result.missing, _endpoints(source))
    except PumpUnavailable as error:
        return Asked((), {"": str(error)})


def _late_whole(late: Asked) -> list[pa.Table]:
    rows = [
        {"start_ts": found.start_ts, "commit_ts": found.commit_ts, "payload": found.pieces[0]}
        for found in late.found
        if len(found.pieces) == 1
    ]
    return [pa.Table.from_pylist(rows, schema=RELEASED)] if rows else []


def _late_in_pieces(late: Asked, piece_store: PieceStore) -> tuple[LargeTransaction, ...]:
    huge = [found for found in late.found if len(found.pieces) > 1]
    for found in huge:
        for first_seq, payload in found.pieces.items():
            piece_store.put(found.start_ts, first_seq, payload)
    return tuple(LargeTransaction(found.start_ts, found.commit_ts, tuple(sorted(found.pieces))) for found in huge)


def _without_prewrite(result: StepResult, late: Asked, span: ResolvedSpan, losses: LossPolicy) -> None:
    """Commits without a Prewrite are lost."""
    found = {transaction.start_ts for transaction in late.found}
    unasked = "".join(f"; Pump {pump} could not be asked: {why}" if pump else f"; {why}" for pump, why in late.failures.items())
    for start_ts, commit_ts in result.missing:
        if start_ts not in found:
            text = (
                f"the Commit of start_ts {start_ts}, commit_ts {commit_ts} ({as_time(commit_ts)}) has no Prewrite in the log of any Pump "
                f"that answers. All Pumps have promised that the log up to {span.upto_ts} is complete{unasked}"
            )
            losses.lost(Loss.NO_PREWRITE, start_ts, commit_ts, text)


def _punctuation(controls: pa.Table, bucket: int) -> ResolvedSpan:
    """The batch's span."""
    resolved = _of_type(controls, ControlType.RESOLVED)
    if not resolved.num_rows:
        raise ProtocolViolation(
            f"bucket {bucket} received no control row in this batch: do not change the number of buckets of an existing checkpoint directory"
        )
    return ResolvedSpan(resolved.column("start_ts")[0].as_py(), resolved.column("commit_ts")[0].as_py())


def _without_left_out(span: ResolvedSpan, controls: pa.Table) -> ResolvedSpan:
    """The span without the part that is left out at its beginning (``framing.punctuation``)."""
    payloads = _of_type(controls, ControlType.RESOLVED).column("payload").to_pylist()
    return replace(span, after_ts=max([span.after_ts, *(int(payload) for payload in payloads if payload)]))


def _passed_on(controls: pa.Table, span: ResolvedSpan) -> pa.Table:
    """Bucket 0's control rows for the following stages: one punctuation, and the losses."""
    lost = _of_type(controls, ControlType.LOST).select(RELEASED.names).cast(RELEASED)
    row = {"control": int(ControlType.RESOLVED), "start_ts": span.after_ts, "commit_ts": span.upto_ts, "payload": None}
    return pa.concat_tables([lost, pa.Table.from_pylist([row], schema=RELEASED)])


def _of_type(controls: pa.Table, wanted: ControlType) -> pa.Table:
    return controls.filter(pc.equal(controls.column("control"), int(wanted)))


@lru_cache(maxsize=8)
def _discovery(source: SourceConfig) -> Any:
    return discovery_of(source)


def _endpoints(source: SourceConfig) -> dict[str, Endpoint]:
    discovery = _discovery(source)
    return endpoints_of(source, discovery, discovery.pumps())
