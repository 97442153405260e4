"""What the query's progress shows of the Pumps. Pure but for the time.

The report has positions, the Pump that holds R back, how often each Pump was woken, what arrived and its age, the bytes not read, and the
bytes that wait for R. ``ReceivedSteps`` counts what arrived, for the Drainer's metrics, too.
"""

import time
from collections.abc import Mapping
from typing import Any

from pyspark_tidb_binlog.binlog_source.source.admission import TailView, holder, newest_promise, pending_bytes, unread_bytes
from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset
from pyspark_tidb_binlog.binlog_source.wire.pump_protocol import Position
from pyspark_tidb_binlog.schemas.events import Delivery, as_time, physical_ms


def report(
    before: BinlogOffset,
    views: Mapping[str, TailView] | None,
    unreachable: Mapping[str, str],
    woken: Mapping[str, int],
    received: Mapping[str, tuple[int, int]],
    *,
    full: bool,
) -> dict[str, Any]:
    """The report after ``before``; ``views`` None: not all Pumps have answered.

    ``woken``: the fakes that each Pump was sent, since the stream started; ``received``: steps of its log and their bytes. ``full``: the pairing state holds as much as it may.
    """
    if not views:
        return before.to_json() | {"unreachable": unreachable}
    held_at = holder(views, before.delivery)
    promises = {pump: newest_promise(view, before.delivery) for pump, view in views.items()}
    now = time.time()
    return {
        "pumps": {pump: (view.steps[-1].position if view.steps else view.origin).to_json() for pump, view in views.items()},
        "resolved_ts": held_at.promise,
        "resolved": as_time(held_at.promise),
        "held_by": held_at.pump,
        "unread_bytes": unread_bytes(views),
        "pending_bytes": pending_bytes(views),
        "holding": "pending bytes" if before.delivery is Delivery.RAW and full else "",
        "unreachable": unreachable,
        "woken": woken,
        "promises": promises,
        "reached": {pump: round(max(0.0, now - physical_ms(promise) / 1000), 3) for pump, promise in promises.items()},
        "received": received,
        "unread_steps": sum(len(view.steps) for view in views.values()),
    }


def outage_report(before: BinlogOffset, why: str) -> dict[str, Any]:
    """The report while no batch can be planned, because a Pump or the registry does not answer."""
    return before.to_json() | {"registry": why}


class ReceivedSteps:
    """The totals of one stream, by Pump. A step is counted when a view first shows it, also if a log is replaced and begins again at lower positions."""

    def __init__(self) -> None:
        self._newest: dict[str, Position] = {}
        self._totals: dict[str, tuple[int, int]] = {}

    def note(self, views: Mapping[str, TailView]) -> None:
        """Count the steps of ``views`` that are new."""
        for pump, view in views.items():
            before = self._newest.get(pump, Position(0, 0))
            if view.anew or (view.steps and view.steps[-1].position < before):
                before = Position(0, 0)
            number, size = self._totals.get(pump, (0, 0))
            for step in reversed(view.steps):
                if step.position <= before:
                    break
                number, size = number + 1, size + step.size
            self._totals[pump] = number, size
            if view.steps:
                self._newest[pump] = max(before, view.steps[-1].position)

    def totals(self) -> dict[str, tuple[int, int]]:
        """Steps and bytes of each Pump since the stream was started."""
        return dict(self._totals)
