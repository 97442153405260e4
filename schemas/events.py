"""The basic types of binlogs: timestamps, record types and operations.

Promises: values only; no IO, of this project only the errors are imported.
Source of the numbers: tipb ``proto/binlog/binlog.proto``.
"""

import datetime
import enum
from typing import NewType

from pyspark_tidb_binlog.schemas.errors import ConfigError

SchemaVersion = NewType("SchemaVersion", int)
"""TiDB's schema version: the ordering key of DDL jobs and the ``schema_version`` of rows."""

TSO_LOGICAL_BITS = 18
_LAST_MS = 32_503_680_000_000
"""The year 3000: a ts is 64 bits long."""


class BinlogType(enum.IntEnum):
    """``Binlog.tp``. A fake binlog is a ROLLBACK with ``start_ts == commit_ts``."""

    PREWRITE = 0
    COMMIT = 1
    ROLLBACK = 2


class Op(enum.IntEnum):
    """What a row event does: ``MutationType`` of the binlog."""

    INSERT = 0
    UPDATE = 1
    DELETE = 4


class ControlType(enum.IntEnum):
    """What a control row says; it travels with the records but is not in any binlog (``schemas.stages``)."""

    RESOLVED = 101
    """The punctuation: the batch's span of resolved_ts."""
    LOST = 102
    """A span that a Pump no longer has, or has damaged (``failOnDataLoss=false``)."""


class Delivery(enum.StrEnum):
    """How a Pump delivers its log: complete Commits by commit_ts, or the bare log."""

    SORTED = "sorted"
    RAW = "raw"


def physical_ms(ts: int) -> int:
    """Milliseconds since the epoch of a TSO."""
    return ts >> TSO_LOGICAL_BITS


def tso(ms: int, logical: int = 0) -> int:
    """The TSO of a physical time in milliseconds."""
    return (ms << TSO_LOGICAL_BITS) | logical


def moment_of(ts: int) -> datetime.datetime:
    """The physical time of a TSO, in UTC."""
    return datetime.datetime.fromtimestamp(physical_ms(ts) / 1000, datetime.UTC)


def as_time(ts: int) -> str:
    """A TSO as UTC text for people: ``2026-11-20 12:34:56.789``."""
    return moment_of(ts).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def ts_at(option: str, text: str, *, last: bool) -> int:
    """The ts that ends before the time in ``text`` (ISO 8601, UTC unless it names an offset), or with its millisecond if ``last``.

    Raises:
        ConfigError: it is no time.
    """
    try:
        moment = datetime.datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise ConfigError(f"option {option} is {text!r}: give a time as 2026-11-20T12:34:56 (UTC) or 2026-11-20T12:34:56+08:00") from error
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
    ms = (moment - datetime.datetime.fromtimestamp(0, datetime.UTC)) // datetime.timedelta(milliseconds=1)
    if not 0 <= ms < _LAST_MS:
        raise ConfigError(f"option {option} is {text!r}: give a time from 1970 on, and before the year 3000")
    return tso(ms + 1) - 1 if last else max(tso(ms) - 1, 0)
