"""Every error that the project raises deliberately, as one tree; the type says whose fault it is.

    ReplicationError
    ├── ConfigError                  the operator fixes a setting
    │   └── NotUsableYet             a retry may help
    ├── Corruption                   bytes that no correct TiDB or Pump writes
    │   └── DamagedLog               a Pump's acknowledged binlogs
    ├── ProtocolViolation            of a Pump, PD or TiDB
    │   └── BinlogPurged             a Pump has collected the span
    ├── PumpUnavailable              a retry may help
    ├── HistoryUnavailable           a DDL job is missing
    ├── SchemaMismatch               a row or a job does not fit the history
    ├── BootstrapRefused             tables cannot be copied as asked
    │   └── SnapshotCollected        GC has passed their snapshot
    ├── Stopped                      asked to while it waited: not a failure
    └── ApplyError                   the target refused something
        ├── RetryableApplyError      a retry may succeed
        ├── ServerRefused            a retry would not
        ├── DdlRefused               in every form
        ├── FindingError             the target differs, and on-finding is stop
        ├── CheckpointMoved          by another program or a person
        ├── LeaseHeld                by another live Drainer
        └── LeaseLost                nothing more is written

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

    @property
    def said(self) -> str:
        """What the server said, or what is known of the error."""
        return self.words or str(self)


class RetryableApplyError(ApplyError):
    """The target refused for a transient reason: deadlock, lost connection, restart."""


class ServerRefused(ApplyError):
    """The server refused a statement, and would refuse it again."""


class FindingError(ApplyError):
    """The target does not match the binlogs, and ``on-finding`` is ``stop``: nothing of that transaction is committed."""


class CheckpointMoved(ApplyError):
    """Another program or a person changed a checkpoint that is kept apart from the target, while the stream was running."""


class DdlRefused(ApplyError):
    """The target refused a DDL in every form."""


class LeaseHeld(ApplyError):
    """Another live Drainer holds the lease of this cluster on this target."""


class LeaseLost(ApplyError):
    """The target no longer holds this Drainer's lease: the Drainer writes nothing more."""
