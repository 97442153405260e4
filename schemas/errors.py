"""Every error that the project raises deliberately, as one tree; the type says whose fault it is.

    ReplicationError                 anything this project refuses or cannot do
    ├── ConfigError                  a setting or option is wrong: the operator fixes it
    │   └── NotUsableYet             its port, name or file cannot be used now: a retry may help
    ├── Corruption                   bytes that no correct TiDB or Pump would have written
    │   └── DamagedLog               acknowledged binlogs in a Pump's value log are damaged, or the log was replaced by another
    ├── ProtocolViolation            a Pump (or PD, or TiDB) violated the protocol
    │   └── BinlogPurged             the Pump has already garbage-collected the requested span
    ├── PumpUnavailable              a Pump cannot be reached or answers with errors: a retry may help
    ├── HistoryUnavailable           the DDL history lacks a job that a binlog names
    ├── SchemaMismatch               a row or a job does not fit the schema history
    ├── BootstrapRefused             tables cannot be copied as asked, or the stream may not begin before they are
    │   └── SnapshotCollected        GC has passed the snapshot that tables are copied at
    ├── Stopped                      the job was asked to stop while it waited: not a failure
    └── ApplyError                   the target refused something
        ├── RetryableApplyError      deadlock, lost connection, restart: a retry may succeed
        ├── DdlRefused               the target refused a DDL in every form
        ├── FindingError             the target does not match the binlogs, and on-finding is stop
        ├── LeaseHeld                another live Drainer writes for this cluster to this target
        └── LeaseLost                another Drainer took the lease, or the target was restored: nothing more is written

A message says what happened, where (table, commit_ts, Pump) and what to do about it.
"""


class ReplicationError(Exception):
    """Base of every error raised deliberately."""


class ConfigError(ReplicationError):
    """A setting or option is wrong."""


class NotUsableYet(ConfigError):
    """A port, name or file of a setting cannot be used now: a port is taken, a name does not resolve, a certificate is half renewed."""


class Corruption(ReplicationError):
    """Bytes that no correct TiDB or Pump would have written."""


class DamagedLog(Corruption):
    """Acknowledged binlogs in a Pump's value log are damaged, or the log was replaced by an older or another log."""


class ProtocolViolation(ReplicationError):
    """A peer violated the protocol."""


class BinlogPurged(ProtocolViolation):
    """The Pump has already garbage-collected the requested span."""


class PumpUnavailable(ReplicationError):
    """A Pump cannot be reached or answers with errors; a retry may help."""


class HistoryUnavailable(ReplicationError):
    """The DDL history does not (yet) hold a job that a binlog names."""


class SchemaMismatch(ReplicationError):
    """A row or a DDL job does not fit the schema history."""


class BootstrapRefused(ReplicationError):
    """Tables cannot be copied as asked, or the stream may not begin before they are copied."""


class SnapshotCollected(BootstrapRefused):
    """The upstream's GC has passed the timestamp that tables are copied at."""


class Stopped(ReplicationError):
    """The job was asked to stop while it waited."""


class ApplyError(ReplicationError):
    """The target refused something; ``errno`` is the server's or client library's error number, 0 when there is none.

    ``words`` is the server's own message: it may contain row data, which ``message`` does not unless ``log-row-data`` is set.
    """

    def __init__(self, message: str, errno: int = 0, words: str = "", where: str = "") -> None:
        """Store the error number, the server's message and its name; they survive pickling."""
        super().__init__(message)
        self.errno = errno
        self.words = words
        self.where = where


class RetryableApplyError(ApplyError):
    """The target refused for a transient reason: deadlock, lost connection, restart."""


class FindingError(ApplyError):
    """The target does not match the binlogs, and ``on-finding`` is ``stop``: nothing of that transaction is committed."""


class CheckpointMoved(ApplyError):
    """Another program or a person changed a checkpoint that is kept apart from the target, while the stream was running."""


class DdlRefused(ApplyError):
    """The target refused a DDL both as text and as derived from the table infos."""


class LeaseHeld(ApplyError):
    """Another live Drainer holds the lease of this cluster on this target."""


class LeaseLost(ApplyError):
    """The target no longer holds this Drainer's lease: the Drainer writes nothing more."""
