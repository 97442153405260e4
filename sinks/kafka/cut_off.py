"""Sends of this process that were cut off but may still arrive. Spark keeps the producers of its Kafka sink after a job, with what a cancelled
task has left in them: the producer's next flush, or its end, sends it.

Promises: until then no topic is asked where it ends, so nothing is sent after such a message. The end of the process ends this state.
"""

import time

from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.kafka.topic_settings import BrokerSettings

_EXPIRES_SECONDS = 60.0
"""Beyond the time after which a producer gives a message up by itself."""
_until: dict[tuple[str, str], float] = {}
"""By brokers and topic: until when, on the monotonic clock."""


def begins(settings: BrokerSettings, seconds: float) -> None:
    """Something is sent now, which its producer gives up after ``seconds``."""
    _until[settings.addrs, settings.topic] = time.monotonic() + seconds + _EXPIRES_SECONDS


def is_over(settings: BrokerSettings) -> None:
    """It is in the topic, or the producer has given it up."""
    _until.pop((settings.addrs, settings.topic), None)


def require_none(settings: BrokerSettings) -> None:
    """Raise ApplyError while a send of this process may still come."""
    if time.monotonic() < _until.get((settings.addrs, settings.topic), 0.0):
        raise ApplyError(
            f"{settings.name}: a send of this process was cut off, and Spark may still send the rest. End the process (restart a notebook's kernel) and "
            "start again: the start reads from the topic what was sent"
        )
