"""What to do after a failed write: try again, try every Pump, refuse or give up (pump_client.md 6).

Promises: pure.
"""

import enum

from binlog_source.pump_client.settings import PumpClientSettings
from binlog_source.pump_client.writer import WriteFailed

DISCONNECTED = "UNAVAILABLE"
"""The status after which a connection is opened anew."""
ANSWERED = "OK"
"""The code of a failure that came as an errmsg: the call as such succeeded."""


class Next(enum.Enum):
    """What follows a failed write."""

    AGAIN = "after a pause"
    EVERYONE = "every Pump that is online, once"
    REFUSE = "no Pump will take it"
    GIVE_UP = "it took too long"


def too_large(failure: WriteFailed) -> bool:
    """Whether the message is larger than the Pump takes."""
    return failure.code == "RESOURCE_EXHAUSTED" or "ResourceExhausted" in failure.text


def after_failed_prewrite(failure: WriteFailed, elapsed: float, retries: int, available: int, settings: PumpClientSettings) -> Next:
    """``elapsed`` seconds since the first try, ``retries`` before this one, while so many Pumps are ``available``."""
    if too_large(failure):
        return Next.REFUSE
    if elapsed > settings.write_timeout and retries > available:
        return Next.EVERYONE
    return Next.AGAIN


def after_failed_outcome(elapsed: float, left: bool, settings: PumpClientSettings) -> Next:
    """``elapsed`` seconds since it was given to the client; ``left``: its Pump is registered offline.

    A Pump goes offline only when no Prewrite waits there any more: it has asked the upstream for this outcome.
    """
    return Next.GIVE_UP if left or elapsed > settings.outcome_patience else Next.AGAIN
