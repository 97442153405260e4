"""What a stream does about binlogs that it cannot have: it ends with an error that says what to do, or records the loss and goes on.

Promises: each loss passes ``LossPolicy.lost``. With ``failOnDataLoss=false`` it is logged, and becomes a LOST row wherever a batch is read.
"""

import logging
from dataclasses import dataclass, field
from enum import Enum

from pyspark_tidb_binlog.schemas.errors import BinlogPurged, DamagedLog, ProtocolViolation, ReplicationError

_log = logging.getLogger(__name__)


class Loss(Enum):
    """A kind of loss: its error, what a person can do, how the stream goes on."""

    DAMAGED = (
        DamagedLog,
        "; restore the file from a copy and remove the Pump's index directory, or load a fresh snapshot of the upstream, "
        "or set failOnDataLoss=false to record the loss as a finding and continue",
        "without these binlogs",
    )
    PURGED = (
        BinlogPurged,
        ": load a fresh snapshot of the upstream, or set failOnDataLoss=false to continue with a gap",
        "with a gap",
    )
    REPLACED = (
        DamagedLog,
        ": restore the Pump's newest data directory, or load a fresh snapshot of the upstream, "
        "or set failOnDataLoss=false to record the loss as a finding and continue with the new log",
        "with what the new log holds",
    )
    NO_PREWRITE = (
        ProtocolViolation,
        ": look for the Prewrite in the Pumps' logs, or set failOnDataLoss=false to continue without this transaction",
        "without this transaction",
    )
    COMMITTED_BEFORE = (
        DamagedLog,
        ": copy its tables again, or set failOnDataLoss=false to continue without this transaction",
        "without this transaction",
    )

    def __init__(self, error: type[ReplicationError], remedy: str, onward: str) -> None:
        self.error, self.remedy, self.onward = error, remedy, onward


@dataclass(frozen=True, slots=True)
class LostSpan:
    """What committed in (after_ts, upto_ts] is lost, on one Pump at least. Of a transaction: its start_ts and commit_ts."""

    after_ts: int
    upto_ts: int
    text: str


@dataclass(frozen=True, slots=True)
class LossPolicy:
    """The policy of a stream, and what it has recorded."""

    fail: bool
    spans: list[LostSpan] = field(default_factory=list)

    def lost(self, kind: Loss, after_ts: int, upto_ts: int, text: str) -> None:
        """Record the loss of (after_ts, upto_ts], of which ``text`` is the message.

        Raises:
            ReplicationError: the stream accepts no loss; of ``kind``.
        """
        if self.fail:
            raise kind.error(text + kind.remedy)
        _log.warning("%s: the stream continues %s, because failOnDataLoss=false", text, kind.onward)
        self.spans.append(LostSpan(after_ts, upto_ts, text))
