"""Up to which ts a real Pump may have collected: it says so nowhere in PullBinlogs, but in its metrics, on the same port. HTTP shell around ``gc_ts_in``.

``binlog_pump_storage_gc_ts`` is in physical milliseconds (pump.md 9), as a float in the text that Prometheus reads: ``1.795277142123e+12``.

Promises: the bound is never below the Pump's own: what the text leaves out (the logical part, and digits beyond those that are written) is rounded up.
"""

import http.client
import re
import time
from decimal import Decimal

from schemas.errors import PumpUnavailable
from schemas.events import TSO_LOGICAL_BITS, physical_ms

METRIC = "binlog_pump_storage_gc_ts"
RECENT_MS = 60_000
"""No Pump is set to collect what is younger than this: ``gc`` is hours or days."""
_TIMEOUT = 5.0
_SAMPLE = re.compile(rf"^{METRIC}(?:\{{[^}}]*\}})?[ \t]+([0-9.eE+]+)(?:[ \t]+-?\d+)?[ \t]*$", re.MULTILINE)
_ALREADY_TSO = 1 << 53
"""No time in milliseconds is as large; a Pump that showed its gc ts as it is would be above."""
_MS = 1 << TSO_LOGICAL_BITS


def gc_ts_in(text: str) -> int | None:
    """The highest gc ts (TSO) that a Pump with this page of metrics can have; None when the page does not say."""
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


def is_recent(ts: int) -> bool:
    """Whether no Pump can have collected what follows ``ts``, by this machine's clock."""
    return physical_ms(ts) > time.time_ns() // 1_000_000 - RECENT_MS


def gc_ts_of(pump: str, address: str) -> int:
    """The gc ts of the Pump at ``address``, at most a millisecond too high.

    Raises:
        PumpUnavailable: it does not say.
    """
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=_TIMEOUT)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise _unknown(pump, address, f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()
    bound = gc_ts_in(body.decode(errors="replace")) if response.status == http.client.OK else None
    if bound is None:
        raise _unknown(pump, address, f"HTTP {response.status}, {len(body)} bytes without {METRIC}")
    return bound


def _unknown(pump: str, address: str, why: str) -> PumpUnavailable:
    return PumpUnavailable(
        f"Pump {pump} does not say what it has collected at http://{address}/metrics ({why}), so that a gap could not be seen; "
        "make that page reachable from here"
    )
