"""How much of a batch a Spark job gets that collects its values on the driver. [spark]

A batch may be one transaction of gigabytes, or all that waited for a Pump. So the driver says by the local property ``stages.COLLECTS`` how many bytes
it takes of each Spark partition. In place of the values beyond stands one empty value. A projection of the batch would do the same, but Spark analyses
and plans it anew for each batch, which took a fifth of a small one's time.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext

from pyspark_tidb_binlog.binlog_source.source.framing import packed_values
from pyspark_tidb_binlog.schemas.stages import COLLECTS

REST = b""
"""Stands for the values that are not taken."""


class CollectedValues:
    """What is taken of one task's values. A job that does not collect takes all."""

    def __init__(self) -> None:
        """Asks Spark whose task this is."""
        task = TaskContext.get()
        told = task.getLocalProperty(COLLECTS) if task is not None else None
        self._room = int(told) if told else None
        self.full = False
        """Whether a value was left out."""

    def take(self, size: int) -> bool:
        """Whether the next value, of ``size`` bytes, is taken: none is behind one that was not."""
        if self._room is not None and not self.full:
            self._room -= size
            self.full = self._room < 0
        return not self.full


def collected(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """``rows`` (``stages.PACKED``) of a task, as its job takes them; what it does not take is not read."""
    values = CollectedValues()
    for batch in rows:
        if not values.take(batch.column("rows").nbytes):
            yield packed_values([0], [REST], [None])
            return
        yield batch
