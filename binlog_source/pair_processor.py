"""Pairing as a Spark operator: one bucket's batch in, complete transactions out. Spark shell around ``pair_bucket``.

The state is one value per bucket: ``pairing.pack`` of what waits, absent when nothing does. Each batch brings each bucket at
least one control row, so each bucket is called once per batch, with its pieces in no promised order.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues, ValueState

from conf import faults
from conf.model import PairConfig, SourceConfig

if TYPE_CHECKING:
    import pandas as pd


class PairProcessor(StatefulProcessor):
    """Pairs the records of one bucket per key. Picklable: holds settings only."""

    def __init__(self, source: SourceConfig, pair: PairConfig) -> None:
        self._source, self._pair = source, pair

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the bucket's one state value."""
        self._state: ValueState = handle.getValueState("pairs", "blob BINARY")

    def handleInputRows(self, key: Any, rows: Any, timerValues: TimerValues) -> "Iterator[pd.DataFrame]":
        """One batch (``stages.PACKED``) of the bucket ``key``."""
        # Not at module level: Spark also loads this in a process of its own, for whose end the query's start waits.
        import pandas as pd

        from binlog_source.pair_bucket import pair_bucket

        stored = self._state.get()
        values = (value for piece in rows for value in piece["rows"])
        paired = pair_bucket(key[0], values, stored[0] if stored is not None else None, self._source, self._pair)
        if paired.state is not None:
            self._state.update((paired.state,))
        elif stored is not None:
            self._state.clear()
        faults.point("pair-state")
        for value in paired.transactions:
            yield pd.DataFrame({"transactions": [value]})
