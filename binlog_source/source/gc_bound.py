"""What a real Pump's log holds: the ts up to which it may be garbage-collected, and its newest ts. HTTP shell around ``gc_ts_in``, ``newest_ts_in``.

PullBinlogs does not report these. The Pump's metrics, on the same port, do: ``binlog_pump_storage_gc_ts`` and ``_max_commit_ts`` are in physical
milliseconds (pump.md 9), floats in Prometheus' text format: ``1.795277142123e+12``.

Promises: the gc ts is never below the Pump's own: what the text omits is rounded up, the logical part, and digits beyond those written. The newest ts
is never above the Pump's own.
"""

import re
import time
from collections.abc import Callable
from decimal import Decimal

from pyspark_tidb_binlog.binlog_source.cluster.pump_pages import require_pump
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.events import TSO_LOGICAL_BITS, physical_ms
from pyspark_tidb_binlog.schemas.http_client import FAILURES, HttpConnection
from pyspark_tidb_binlog.schemas.tls import TlsSettings

METRIC, _NEWEST = "binlog_pump_storage_gc_ts", "binlog_pump_storage_max_commit_ts"
RECENT_MS = 60_000
"""No Pump collects what is younger than this: its setting ``gc`` is hours or days."""
_TIMEOUT = 5.0
_SAMPLE = re.compile(rf"^({METRIC}|{_NEWEST})(?:\{{[^}}]*\}})?[ \t]+([0-9.eE+]+)(?:[ \t]+-?\d+)?[ \t]*$", re.MULTILINE)
_ALREADY_TSO = 1 << 53
"""Larger than any time in milliseconds; a Pump that exports its gc ts as a TSO is above it."""
_MS = 1 << TSO_LOGICAL_BITS


def gc_ts_in(text: str) -> int | None:
    """The highest gc ts (TSO) that a Pump with this page of metrics can have; None if the page does not contain it."""
    value = _milliseconds(text, METRIC)
    if value is None:
        return None
    if not value:
        return 0
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    largest = int(value) + (10**exponent if exponent > 0 else 0)
    return largest if value >= _ALREADY_TSO else largest * _MS + _MS - 1


def newest_ts_in(text: str) -> int | None:
    """The lowest ts (TSO) that the newest binlog of a Pump with this page of metrics can have; None if the page does not contain it."""
    value = _milliseconds(text, _NEWEST)
    return None if value is None else int(value) * (1 if value >= _ALREADY_TSO else _MS)


def _milliseconds(text: str, metric: str) -> Decimal | None:
    return next((Decimal(number) for name, number in _SAMPLE.findall(text) if name == metric), None)


def is_recent(ts: int, newest_ts: int) -> bool:
    """Whether no Pump can have collected anything above ``ts``; ``newest_ts``: the newest ts of the upstream that is known, 0 = none.

    Two conditions must hold: this machine's clock is near ``ts``, and so is ``newest_ts``. A clock far behind ``ts`` is wrong and proves nothing. In
    a machine that was suspended the clock agrees with ``ts``, but is behind ``newest_ts``.
    """
    return abs(time.time_ns() // 1_000_000 - physical_ms(ts)) < RECENT_MS and physical_ms(newest_ts) - physical_ms(ts) < RECENT_MS


def gc_ts_of(pump: str, address: str, tls: TlsSettings | None = None, *, by_address: bool = False) -> int:
    """The gc ts of Pump ``pump`` at ``address``, rounded up to the precision of the metric; ``tls``: the cluster's.

    ``by_address``: any Pump at the address will do, whatever its node id.

    Raises:
        PumpUnavailable: the Pump does not report it, or another Pump answers.
    """
    return _reported(pump, address, METRIC, gc_ts_in, tls, by_address)


def newest_ts_of(pump: str, address: str, tls: TlsSettings | None = None, *, by_address: bool = False) -> int:
    """The newest ts of Pump ``pump`` at ``address``, rounded down; arguments and error as of ``gc_ts_of``."""
    return _reported(pump, address, _NEWEST, newest_ts_in, tls, by_address)


def _reported(pump: str, address: str, metric: str, read: Callable[[str], int | None], tls: TlsSettings | None, by_address: bool) -> int:
    page = f"{'https' if tls else 'http'}://{address}/metrics"
    try:
        text = _page_of_anyone(address, tls) if by_address else require_pump(pump, address, tls)
        why = f"{len(text)} bytes without {metric}"
    except FAILURES as error:
        text, why = "", f"{type(error).__name__}: {error}"
    ts = read(text)
    if ts is None:
        raise PumpUnavailable(
            f"Pump {pump} does not report {metric} at {page} ({why}), so a gap in the Pump's log could not be noticed: "
            "make this page reachable from this machine"
        )
    return ts


def _page_of_anyone(address: str, tls: TlsSettings | None) -> str:
    with HttpConnection.to(address, _TIMEOUT, tls=tls or False) as connection:
        answer = connection.request("GET", "/metrics")
    return answer.text if answer.ok else ""
