"""A topic in memory (``sinks.kafka.kafka_sink.Topic``) that outlives its sinks, and can fail within a send."""

from collections.abc import Sequence

from pyspark_tidb_binlog.schemas.errors import ApplyError


class MemoryTopic:
    """Partition 0 of a topic."""

    waiting_for = None

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.deleted = 0
        """How many of the first messages the brokers no longer hold."""
        self.fails_after: int | None = None
        """How many more messages are taken before a send fails."""

    def begin(self) -> int:
        return self.deleted

    def end(self) -> int:
        return len(self.messages)

    def read(self, begin: int, end: int) -> Sequence[bytes]:
        return self.messages[max(begin, self.deleted) : end]

    def send(self, messages: Sequence[bytes]) -> None:
        taken = len(messages) if self.fails_after is None else min(self.fails_after, len(messages))
        self.messages += messages[:taken]
        if self.fails_after is not None:
            self.fails_after -= taken
        if taken < len(messages):
            raise ApplyError("the broker is gone")

    def close(self) -> None:
        """Nothing is held."""
