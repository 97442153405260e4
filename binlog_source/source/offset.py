"""The source's offset: the position of the stream; small, immutable, versioned, never decreasing. Pure.

JSON form (sorted keys, format version 2)::

    {"clock_ts": C, "delivery": "raw", "floor": F,
     "pumps": {ID: {"offset": o, "suffix": s[, "since": {"offset": o, "suffix": s}][, "seen_ts": S]}},
     "resolved_ts": R, "version": 2[, "gone_ts": G][, "left": {ID: L}]}

``resolved_ts``  all transactions with ``commit_ts <= R`` are released by the batch that ends here.
``floor``        where the stream began: transactions with ``commit_ts <= F`` never belong to it. In every offset, because
                 Spark keeps only end offsets, and "now" must mean the same after a crash in the first batch.
``pumps``        *raw*: the log position just after the last record read. ``since`` is where reading the log begins: in the first offset
                 that contains a Pump, and in a later one if the log was replaced (``fingerprint``).
                 *sorted*: ``suffix`` 0, ``offset`` = R. ``seen_ts``: the largest commit_ts of a Commit or fake in its log before the
                 position (sorted: up to R); absent if unknown.
``clock_ts``     *raw*: every Pump has been read at least to a fake or Commit of this ts; the source of the query's watermark. *sorted*: 0.
``gone_ts``      in the first offset of a stream that began at 0, if a Pump had collected up to G: transactions with
                 ``commit_ts <= G`` are left out, because some are incomplete.
``left``         Pumps that are left out, although they may have had binlogs above the R before, up to L (``departed``). The first batch with
                 such a Pump records the loss; it stays here while L is above R.

Promises: ``from_json`` refuses everything that ``to_json`` cannot have written, with a ``ConfigError`` that says what to do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark_tidb_binlog.binlog_source.wire.fingerprint import ANYWHERE, LogFingerprint
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import Delivery

VERSION = 2
_MAX_INT64 = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class PumpMark:
    """How far one Pump's log is read, and where reading began if this offset is the first to contain it. ``seen_ts`` 0: unknown."""

    position: Position
    since: Position | None = None
    seen_ts: int = 0

    def to_json(self) -> dict[str, Any]:
        """The mark as a JSON object."""
        since = {} if self.since is None else {"since": self.since.to_json()}
        return {
            "offset": self.position.offset,
            **since,
            **({"seen_ts": self.seen_ts} if self.seen_ts else {}),
            "suffix": self.position.suffix,
        }


@dataclass(frozen=True, slots=True)
class BinlogOffset:
    """One offset of the stream; the module's docstring explains the fields."""

    delivery: Delivery
    resolved_ts: int
    floor: int
    pumps: Mapping[str, PumpMark]
    clock_ts: int = 0
    """Meaningless if below ``resolved_ts``: see ``clock``."""
    gone_ts: int = 0
    left: Mapping[str, int] = field(default_factory=dict)

    @property
    def clock(self) -> int:
        """``clock_ts``, but never below R."""
        return max(self.clock_ts, self.resolved_ts)

    @property
    def initial(self) -> bool:
        """True for the offset before the first batch."""
        return not self.pumps

    def to_json(self) -> dict[str, Any]:
        """The offset as the dict that Spark writes to its log; equal offsets give equal text."""
        return {
            "clock_ts": self.clock_ts,
            "delivery": str(self.delivery),
            "floor": self.floor,
            "pumps": {pump: self.pumps[pump].to_json() for pump in sorted(self.pumps)},
            "resolved_ts": self.resolved_ts,
            "version": VERSION,
            **({"gone_ts": self.gone_ts} if self.gone_ts else {}),
            **({"left": dict(sorted(self.left.items()))} if self.left else {}),
        }


def from_json(value: object) -> BinlogOffset:
    """The offset in ``value``, which was read from a checkpoint directory.

    Raises:
        ConfigError: it is not an offset of this source, or its version is not supported.
    """
    fields = _object(value, "the offset")
    version = fields.get("version")
    if version != VERSION or isinstance(version, bool):
        raise _refused(f"its version is {version!r}, supported is {VERSION}")
    if set(fields) - {"gone_ts", "left"} != {"clock_ts", "delivery", "floor", "pumps", "resolved_ts", "version"}:
        raise _refused(f"its fields are {sorted(map(str, fields))}")
    if fields["delivery"] not in tuple(map(str, Delivery)):
        raise _refused(f"its delivery is {fields['delivery']!r}")
    resolved, floor = _count(fields["resolved_ts"], "resolved_ts"), _count(fields["floor"], "floor")
    if resolved < floor:
        raise _refused(f"its resolved_ts {resolved} is below its floor {floor}")
    clock = _count(fields["clock_ts"], "clock_ts")
    marks = {pump: _mark(pump, mark) for pump, mark in _object(fields["pumps"], "pumps").items()}
    gone_ts = _count(fields.get("gone_ts", 0), "gone_ts")
    left = {str(pump): _count(upto_ts, f"left of Pump {pump}") for pump, upto_ts in _object(fields.get("left", {}), "left").items()}
    return BinlogOffset(Delivery(fields["delivery"]), resolved, floor, marks, clock, gone_ts, left)


def require_advance(start: BinlogOffset, end: BinlogOffset) -> None:
    """Refuse a batch that would go backwards.

    Raises:
        ConfigError: ``end`` has another delivery or floor, or any part of it is behind ``start``.
    """
    if start.delivery != end.delivery:
        raise ConfigError(
            f"the checkpoint holds offsets of two deliveries of the source tidb_binlog: first delivery {start.delivery}, then delivery {end.delivery}"
        )
    if not start.initial and start.floor != end.floor:
        raise _refused(f"its floor moved from {start.floor} to {end.floor}")
    if end.resolved_ts < (end.floor if start.initial else start.resolved_ts):
        raise _refused(f"its resolved_ts goes back from {start.resolved_ts} to {end.resolved_ts}")
    if end.clock < start.clock and not start.initial:
        raise _refused(f"its clock_ts goes back from {start.clock} to {end.clock}")
    for pump, mark in end.pumps.items():
        before = start.pumps.get(pump)
        origin = mark.since if mark.since is not None or before is None else before.position
        if origin is not None and mark.position < origin:
            raise _refused(f"Pump {pump} goes back from {origin} to {mark.position}")


def _mark(pump: object, value: object) -> PumpMark:
    if not isinstance(pump, str) or not pump:
        raise _refused(f"{pump!r} is not a Pump id")
    fields = _object(value, f"the mark of Pump {pump}")
    if not {"offset", "suffix"} <= set(fields) <= {"offset", "suffix", "since", "seen_ts"}:
        raise _refused(f"the mark of Pump {pump} has the fields {sorted(map(str, fields))}")
    since = _position(fields["since"], pump) if "since" in fields else None
    seen_ts = _count(fields.get("seen_ts", 0), "seen_ts")
    return PumpMark(Position(_count(fields["suffix"], "suffix"), _count(fields["offset"], "offset")), since, seen_ts)


def _position(value: object, pump: str) -> Position:
    fields = _object(value, f"since of Pump {pump}")
    if set(fields) != {"offset", "suffix"}:
        raise _refused(f"since of Pump {pump} has the fields {sorted(map(str, fields))}")
    return Position(_count(fields["suffix"], "suffix"), _count(fields["offset"], "offset"))


def _object(value: object, what: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise _refused(f"{what} is {type(value).__name__}, not an object")
    return value


def _count(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_INT64:
        raise _refused(f"{what} is {value!r}, not an integer from 0 to 2^63-1")
    return value


def _refused(why: str) -> ConfigError:
    return ConfigError(f"the checkpoint holds an offset of the source tidb_binlog that cannot be used: {why}")


def seen_of(offset: BinlogOffset, pump: str) -> LogFingerprint | None:
    """What the stream at ``offset`` has read of a Pump's log; None if nothing."""
    mark = offset.pumps.get(pump)
    if mark is None:
        return None
    seen = LogFingerprint(mark.position if offset.delivery is Delivery.RAW else ANYWHERE, mark.seen_ts)
    return seen if seen != LogFingerprint(ANYWHERE) else None
