"""A send through Spark's Kafka sink that was cut off: nothing of the same process is sent behind it, whoever sends."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pyspark.errors import PySparkException

from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.kafka import cut_off
from pyspark_tidb_binlog.sinks.kafka.broker_topic import BrokerTopic
from pyspark_tidb_binlog.sinks.kafka.spark_topic import SparkTopic
from pyspark_tidb_binlog.sinks.kafka.topic_settings import BrokerSettings


class Script(SparkTopic):
    """Its topic ends at 5; sends end as a test says."""

    def __init__(self, settings: BrokerSettings, ending: str) -> None:
        super().__init__(None, settings, lambda seconds: None)  # type: ignore[arg-type]
        self._ending = ending

    def _asked(self, question: Callable[[Any], Any]) -> int:
        return 5

    def _limit(self) -> int:
        return 1 << 20

    def _expect(self, expected: int, when: str) -> None:
        pass

    def _write(self, run: Sequence[bytes]) -> None:
        if self._ending:
            raise PySparkException(self._ending)


@pytest.mark.parametrize(
    "ending",
    [
        "Job 7 cancelled part of cancelled job group",
        "org.apache.kafka.common.errors.InterruptException: Flush interrupted.",
        "another attempt of this task began this send",
    ],
)
def test_nothing_is_sent_behind_one_that_may_still_come(ending: str) -> None:
    settings = BrokerSettings("127.0.0.1:1", f"cut off by {ending}")
    with pytest.raises(ApplyError, match="This life does not send them again"):
        Script(settings, ending).send([b"1"])
    for topic in (Script(settings, ""), BrokerTopic(settings)):
        with pytest.raises(ApplyError, match="may still send the rest. End the process"):
            topic.end()


@pytest.mark.parametrize(
    "ending", ["", "org.apache.kafka.common.errors.TimeoutException: Expiring 3 record(s) for t-0:120000 ms has passed"]
)
def test_one_that_is_there_or_given_up_is_over(ending: str) -> None:
    settings = BrokerSettings("127.0.0.1:1", f"over by {ending}")
    if ending:
        with pytest.raises(ApplyError, match="Expiring 3 record"):
            Script(settings, ending).send([b"1"])
    else:
        Script(settings, ending).send([b"1"])
    assert Script(settings, "").end() == 5


def test_another_topic_is_not_concerned() -> None:
    cut_off.begins(BrokerSettings("b:1", "one"), 100.0)
    cut_off.require_none(BrokerSettings("b:1", "another"))
    with pytest.raises(ApplyError, match="Kafka topic one"):
        cut_off.require_none(BrokerSettings("b:1", "one"))
