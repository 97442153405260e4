"""Binlogs as messages of one Kafka topic (``db-type = "kafka"``): what a real Drainer's Kafka sink sends (wire.md 2.4, drainer.md 9).

One message per transaction and DDL, without a key, in partition 0, in the order of commit_ts.

Promises: those of the contract, as long as no other program sends to the topic. Messages that were sent before a crash but not recorded are
read from the end of the topic and not sent again. So the end of the topic must be readable: brokers may not have deleted those messages yet. A
consumer should skip messages that are not above the last commit_ts, as it does with a real Drainer.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.translate.binlog_format import commit_ts_of
from pyspark_tidb_binlog.sinks.translate.local_record import Stand, TargetPlace
from pyspark_tidb_binlog.sinks.translate.message_sink import LastBinlog, MessageSettings, MessageSink, Outlet
from pyspark_tidb_binlog.sinks.translate.process_zone import process_zone
from pyspark_tidb_binlog.sinks.translate.secondary_binlogs import SecondaryBinlogs
from pyspark_tidb_binlog.sinks.translate.translation import Message

_log = logging.getLogger(__name__)

_LOOK_BACK = 64
"""Messages read at a time while the end of the record is searched."""
_SEND_BYTES = 16 << 20
"""Approximate bytes of messages that are sent at a time."""


class Topic(Protocol):
    """Partition 0 of a topic."""

    def begin(self) -> int:
        """The offset of the first message that the brokers still hold."""

    def end(self) -> int:
        """The offset after the last message."""

    def read(self, begin: int, end: int) -> Sequence[bytes]:
        """The messages with these offsets; those that the brokers have deleted are left out."""

    def send(self, messages: Sequence[bytes]) -> None:
        """Append ``messages`` in their order; acknowledged by all replicas when it returns.

        Raises:
            ApplyError: it failed; a leading part of ``messages`` may be there all the same.
        """

    @property
    def waiting_for(self) -> object | None:
        """The transient error that is being retried."""

    def close(self) -> None:
        """Release connections; safe to call twice."""


@dataclass(frozen=True, slots=True)
class SentMessage:
    """What a message is known by."""

    commit_ts: int
    digest: bytes

    @classmethod
    def of(cls, payload: bytes) -> "SentMessage":
        """That of a message."""
        return cls(commit_ts_of(payload), hashlib.sha256(payload).digest())


def kafka_sink(topic: Topic, settings: MessageSettings) -> MessageSink:
    """The sink of a stream into a topic. TIMESTAMP values are in the zone of this process."""
    return MessageSink(settings, SecondaryBinlogs(process_zone()), TopicEnd(topic))


class TopicEnd(Outlet):
    """The end of a topic, to which messages are sent once."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._sent: Counter[SentMessage] = Counter()
        """What lies beyond the record."""
        self._offset = 0

    def open(self, stand: Stand | None, commit_ts: int) -> None:
        """Read what was sent beyond the record."""
        end = self._topic.end()
        if stand is not None and stand.place is not None:
            self._offset = stand.place["offset"]
            if self._offset > end:
                raise ApplyError(
                    f"the topic ends at offset {end}, but {self._offset} messages are recorded as sent: it is another topic, or was created again. Name the "
                    "right topic, or begin with an empty data-dir"
                )
            beyond = list(self._topic.read(self._offset, end))
        else:
            beyond = self._beyond(commit_ts, end)
            self._offset = end - len(beyond)
        self._sent = Counter(map(SentMessage.of, beyond))
        if beyond:
            _log.warning(
                "the topic holds %d messages beyond %d. They were sent before the last stop and are not sent again",
                len(beyond),
                commit_ts,
            )

    def put(self, messages: Iterable[Message]) -> int:
        """Send what is not there already."""
        done, held, size = 0, [], 0
        for message in messages:
            done += message.events
            if self._there_already(message.payload):
                continue
            held.append(message.payload)
            size += len(message.payload)
            if size >= _SEND_BYTES:
                self._send(held)
                held, size = [], 0
        self._send(held)
        return done

    def last(self) -> LastBinlog | None:
        """The last message that the brokers hold."""
        first, end = self._topic.begin(), self._topic.end()
        for begin in range(end - _LOOK_BACK, first - _LOOK_BACK, -_LOOK_BACK):
            if held := self._topic.read(max(begin, first), begin + _LOOK_BACK):
                return LastBinlog("the topic", commit_ts_of(held[-1]))
        return LastBinlog("the topic", 0) if end else None

    @property
    def place(self) -> TargetPlace:
        """The offset after the last message of the record."""
        return {"offset": self._offset}

    @property
    def waiting_for(self) -> object | None:
        """The topic's transient error."""
        return self._topic.waiting_for

    def close(self) -> None:
        """Release the topic."""
        self._topic.close()

    def _send(self, messages: list[bytes]) -> None:
        if messages:
            self._topic.send(messages)
            self._offset += len(messages)

    def _there_already(self, payload: bytes) -> bool:
        if not self._sent:
            return False
        known = SentMessage.of(payload)
        if not self._sent[known]:
            return False
        self._sent[known] -= 1
        self._sent += Counter()
        self._offset += 1
        return True

    def _beyond(self, commit_ts: int, end: int) -> list[bytes]:
        """The messages at the end of the topic with a higher commit_ts."""
        found: list[bytes] = []
        first = self._topic.begin()
        while end > first:
            begin = max(first, end - _LOOK_BACK)
            part = list(self._topic.read(begin, end))
            beyond = [m for m in part if commit_ts_of(m) > commit_ts]
            found = beyond + found
            if len(beyond) < len(part):
                break
            end = begin
        return found
