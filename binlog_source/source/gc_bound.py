"""The ts up to which a real Pump may have garbage-collected its log. HTTP shell around ``gc_ts_in``.

PullBinlogs does not report that ts. The Pump's metrics, on the same port, do: ``binlog_pump_storage_gc_ts`` is in physical milliseconds
(pump.md 9), a float in Prometheus' text format: ``1.795277142123e+12``.

Promises: the bound is never below the Pump's own. What the text omits is rounded up: the logical part, and digits beyond those written.
"""

import re
import time
from decimal import Decimal

from pyspark_tidb_binlog.binlog_source.cluster.pump_identity import require_pump
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.events import TSO_LOGICAL_BITS, physical_ms
from pyspark_tidb_binlog.schemas.http_client import FAILURES, HttpConnection
from pyspark_tidb_binlog.schemas.tls import TlsSettings

METRIC = "binlog_pump_storage_gc_ts"
RECENT_MS = 60_000
"""No Pump collects what is younger than this: its setting ``gc`` is hours or days."""
_TIMEOUT = 5.0
_SAMPLE = re.compile(rf"^{METRIC}(?:\{{[^}}]*\}})?[ \t]+([0-9.eE+]+)(?:[ \t]+-?\d+)?[ \t]*$", re.MULTILINE)
_ALREADY_TSO = 1 << 53
"""Larger than any time in milliseconds; a Pump that exports its gc ts as a TSO is above it."""
_MS = 1 << TSO_LOGICAL_BITS


def gc_ts_in(text: str) -> int | None:
    """The highest gc ts (TSO) that a Pump with this page of metrics can have; None if the page does not contain it."""
    found = _SAMPLE.search(text)
    if found is None:
        return None
    value = Decimal(found[1])
    if not value:
        return 0
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    largest = int(value) + (10**exponent if exponent > 0 else 0)
    return largest if value >= _ALREADY_TSO else largest * _MS + _MS - 1


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
        PumpUnavailable: the Pump does not report its gc ts, or another Pump answers.
    """
    page = f"{'https' if tls else 'http'}://{address}/metrics"
    try:
        text = _page_of_anyone(address, tls) if by_address else require_pump(pump, address, tls)
        why = f"{len(text)} bytes without {METRIC}"
    except FAILURES as error:
        text, why = "", f"{type(error).__name__}: {error}"
    bound = gc_ts_in(text)
    if bound is None:
        raise PumpUnavailable(
            f"Pump {pump} does not report its gc ts at {page} ({why}), so a gap in the Pump's log could not be noticed: "
            "make this page reachable from this machine"
        )
    return bound


def _page_of_anyone(address: str, tls: TlsSettings | None) -> str:
    with HttpConnection.to(address, _TIMEOUT, tls=tls or False) as connection:
        answer = connection.request("GET", "/metrics")
    return answer.text if answer.ok else ""
