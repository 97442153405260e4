"""How much of a batch a Spark job gets that collects its values on the driver. [spark]

A batch may be one transaction of gigabytes, or all that waited for a Pump. So the driver says by the local property ``stages.COLLECTS`` how many bytes
it takes of each Spark partition. In place of the values beyond stands one empty value. A projection of the batch would do the same, but Spark analyses
and plans it anew for each batch, which took a fifth of a small one's time.
"""

from pyspark import TaskContext

REST = b""
"""Stands for the values that are not taken."""


class CollectedValues:
    """What is taken of one task's values. A job that does not collect takes all."""

    def __init__(self) -> None:
        """Asks Spark whose task this is."""
        task, self._room = TaskContext.get(), None
        if task is not None:
            # Not at module level: where there is no task, Spark waits for the imports of pairing before a query starts.
            from pyspark_tidb_binlog.schemas.stages import COLLECTS

            told = task.getLocalProperty(COLLECTS)
            self._room = int(told) if told else None
        self.full = False
        """Whether a value was left out."""

    def take(self, size: int) -> bool:
        """Whether the next value, of ``size`` bytes, is taken: none is behind one that was not."""
        if self._room is not None and not self.full:
            self._room -= size
            self.full = self._room < 0
        return not self.full
