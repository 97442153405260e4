"""The next step after a failed write: retry, try every Pump, refuse or give up (pump_client.md 6).

Promises: pure.
"""

import enum

from pyspark_tidb_binlog.binlog_source.pump_client.settings import PumpClientSettings
from pyspark_tidb_binlog.binlog_source.pump_client.writer import WriteFailed

DISCONNECTED = "UNAVAILABLE"
"""The status after which a connection is reopened."""
ANSWERED = "OK"
"""The code of a failure that came as an errmsg: the call as such succeeded."""


class AfterFailure(enum.Enum):
    """What follows a failed write."""

    AGAIN = "after a pause"
    EVERYONE = "every Pump that is online, once"
    REFUSE = "no Pump will accept it"
    GIVE_UP = "it took too long"


def too_large(failure: WriteFailed) -> bool:
    """Whether the message is larger than the Pump accepts."""
    return failure.code == "RESOURCE_EXHAUSTED" or "ResourceExhausted" in failure.text


def after_failed_prewrite(failure: WriteFailed, elapsed: float, retries: int, available: int, settings: PumpClientSettings) -> AfterFailure:
    """The next step ``elapsed`` seconds after the first try and after ``retries`` retries, while ``available`` Pumps are available."""
    if too_large(failure):
        return AfterFailure.REFUSE
    if elapsed > settings.write_timeout and retries > available:
        return AfterFailure.EVERYONE
    return AfterFailure.AGAIN


def after_failed_outcome(elapsed: float, left: bool, settings: PumpClientSettings) -> AfterFailure:
    """The next step ``elapsed`` seconds after the client got the outcome; ``left``: its Pump is registered offline.

    A Pump goes offline only when no Prewrite waits on it: it already has this outcome from the upstream.
    """
    return AfterFailure.GIVE_UP if left or elapsed > settings.outcome_patience else AfterFailure.AGAIN
