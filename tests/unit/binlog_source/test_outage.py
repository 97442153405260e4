"""What does not answer is endured for a while, and then it is an error."""

import time

import pytest

from pyspark_tidb_binlog.binlog_source.source.outage import Outage
from pyspark_tidb_binlog.schemas.errors import PumpUnavailable

AWAY = PumpUnavailable("away")


def test_a_short_outage_is_endured() -> None:
    outage = Outage(3600.0)
    outage.endure(AWAY)
    outage.endure(AWAY)
    assert outage.patience == 3600.0


def test_one_that_lasts_is_raised() -> None:
    outage = Outage(5.0)
    outage.began(time.monotonic() - 6.0)
    with pytest.raises(PumpUnavailable, match="away"):
        outage.endure(AWAY)


def test_a_success_in_between_begins_anew() -> None:
    outage = Outage(5.0)
    outage.began(time.monotonic() - 6.0)
    outage.over()
    outage.endure(AWAY)
    outage.began(0.0)
    outage.endure(AWAY)
    assert outage.patience == 5.0
