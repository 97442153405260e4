"""Every error the project raises on purpose, as one tree; the type says whose fault it is.

    ReplicationError                 anything this project refuses or cannot do
    ├── ConfigError                  a setting or option is wrong: the operator mends it
    ├── Corruption                   bytes that no correct TiDB or Pump would have written
    │   └── DamagedLog               a Pump's value log is damaged where binlogs that it acknowledged stood, or is an older or another one
    ├── ProtocolViolation            a Pump (or PD, or TiDB) broke a promise of the protocol
    │   └── BinlogPurged             the Pump has already collected the span that was asked for
    ├── PumpUnavailable              a Pump cannot be reached or answers errors: retry may help
    ├── HistoryUnavailable           the DDL history lacks a job that a binlog names
    ├── SchemaMismatch               a row or a job does not fit the schema history
    ├── Stopped                      somebody asked the job to end while it waited: no fault at all
    └── ApplyError                   the target refused something
        ├── RetryableApplyError      deadlock, lost connection, restart: the same again may work
        ├── DdlRefused               the target refused a DDL in every form we know
        ├── FindingError             the target is not as the binlogs say it must be, and on-finding is stop
        ├── LeaseHeld                another Drainer, alive, writes for this cluster to this target
        └── LeaseLost                another Drainer took the lease, or the target was restored: nothing more is written

A message says what happened, where (table, commit_ts, Pump) and what to do about it.
"""


class ReplicationError(Exception):
    """Base of every error raised on purpose."""


class ConfigError(ReplicationError):
    """A setting or option is wrong."""


class Corruption(ReplicationError):
    """Bytes that no correct TiDB or Pump would have written."""


class DamagedLog(Corruption):
    """A Pump's value log is damaged where acknowledged binlogs stood, or is an older or another one."""


class ProtocolViolation(ReplicationError):
    """A peer broke a promise of the protocol."""


class BinlogPurged(ProtocolViolation):
    """The Pump has already collected the span that was asked for."""


class PumpUnavailable(ReplicationError):
    """A Pump cannot be reached or answers with errors; a retry may help."""


class HistoryUnavailable(ReplicationError):
    """The DDL history does not (yet) hold a job that a binlog names."""


class SchemaMismatch(ReplicationError):
    """A row or a DDL job does not fit the schema history."""


class Stopped(ReplicationError):
    """The job was asked to end while it waited for something."""


class ApplyError(ReplicationError):
    """The target refused something; ``errno`` is the server's or client library's error number, 0 when there is none.

    ``words`` are the server's own: they may hold row data, which the message does not unless ``log-row-data`` is set.
    """

    def __init__(self, message: str, errno: int = 0, words: str = "", where: str = "") -> None:
        """Keep number, words and the server's name beside the message, also through pickling."""
        super().__init__(message)
        self.errno = errno
        self.words = words
        self.where = where


class RetryableApplyError(ApplyError):
    """The target refused for a reason that may pass: deadlock, lost connection, restart."""


class FindingError(ApplyError):
    """Something was found that is not as the binlogs say it must be, and ``on-finding`` is ``stop``: nothing of it is committed."""


class DdlRefused(ApplyError):
    """The target refused a DDL as text and as derived from the table infos."""


class LeaseHeld(ApplyError):
    """Another Drainer, alive, has the lease of this cluster on this target."""


class LeaseLost(ApplyError):
    """The lease of this Drainer is not the target's any more: it writes nothing more."""
