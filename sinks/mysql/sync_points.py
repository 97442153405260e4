"""Asks a TiDB target, at most once a minute, for its present timestamp: the ``secondary-ts`` of a checkpoint (drainer.md 5.7). [db]

Promises: the timestamp is taken between two steps, so the target at that timestamp equals the source at the checkpoint's commitTS. A server that gives no
timestamp costs one line in the log.
"""

import logging
import time

from pyspark_tidb_binlog.schemas.errors import ApplyError, RetryableApplyError
from pyspark_tidb_binlog.sinks.mysql.leased_target import LeasedTarget
from pyspark_tidb_binlog.sinks.mysql.session import Session

_log = logging.getLogger(__name__)

_SECONDS = 60.0
_ASK = "SHOW MASTER STATUS"


class SyncPoints:
    """When the target is asked next."""

    def __init__(self) -> None:
        """The first answer is due at once."""
        self._next_at = 0.0
        self._told = False

    def due(self, target: LeasedTarget) -> int:
        """The target's timestamp; 0: it is not due, or the target has none."""
        if time.monotonic() < self._next_at:
            return 0
        self._next_at = time.monotonic() + _SECONDS
        why = f"{_ASK} shows none"
        try:
            for attempt in target.retrying():
                with attempt, target.session(attempt) as session:
                    found = _position(session)
        except RetryableApplyError:
            raise
        except ApplyError as error:
            found, why = 0, str(error)
        if not found and not self._told:
            self._told = True
            _log.warning("the target gives no timestamp to record, so the checkpoint's ts-map does not change: %s", why)
        return found


def _position(session: Session) -> int:
    rows = session.query(_ASK)
    return int(rows[0][1]) if rows and str(rows[0][1]).isdecimal() else 0
