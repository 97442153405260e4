"""How much of each Pump's log has arrived, for the Drainer's metrics: the steps of its tail and their bytes, each counted once. Pure.

Promises: a step is counted when a view first shows it. Counting continues if a Pump's log is replaced and begins again at lower positions.
"""

from collections.abc import Mapping

from pyspark_tidb_binlog.binlog_source.source.admission import TailView
from pyspark_tidb_binlog.binlog_source.wire.position import Position


class ReceivedSteps:
    """The totals of one stream, by Pump."""

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
