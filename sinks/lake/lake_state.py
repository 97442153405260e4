"""What a commit to the ledger says of its stream: JSON beside the rows, in the same commit. Pure.

    {"layout": 1, "target": "…", "cluster_id": 1, "epoch": 3, "number": 17, "holder": {…}, "held": true, "commit_ts": 45…, "schema_version": 9, "early": []}

The newest such commit is the record: every transaction up to its ``commit_ts`` is in the ledger, and none above it.
"""

import json
import os
import socket
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from pyspark_tidb_binlog.sinks.engine.segments import AppliedJobs

_LAYOUT = 1


@dataclass(frozen=True, slots=True)
class LakeWriter:
    """A process that writes, or has written, to a lake."""

    drainer: str = ""
    host: str = ""
    pid: int = 0

    @classmethod
    def here(cls, drainer: str) -> Self:
        """The process that asks."""
        return cls(drainer, socket.gethostname(), os.getpid())

    @property
    def is_gone(self) -> bool:
        """Whether it was a process of this machine that is not there any more."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False

    def __str__(self) -> str:
        """For messages."""
        return f"{self.drainer} (process {self.pid} on {self.host})"


@dataclass(frozen=True, slots=True)
class LakeState:
    """How far a ledger is, and who writes it."""

    target: str
    """The identity of the lake."""
    cluster_id: int
    epoch: int = 0
    """Ascends with each start."""
    number: int = 0
    """Ascends with each commit of an epoch."""
    holder: LakeWriter = field(default_factory=LakeWriter)
    held: bool = False
    """Whether the holder writes on; False: it has ended."""
    commit_ts: int | None = None
    """None: the stream has not begun."""
    schema_version: int = 0
    early: frozenset[int] = frozenset()
    """``AppliedJobs.early``."""
    since_ts: int = 0
    """``AppliedJobs.since``."""
    begin_ts: int = 0
    """Up to it only DDLs are kept; a row change may still be there, for moments that need it."""

    @property
    def applied(self) -> AppliedJobs:
        """The DDL jobs that the ledger holds."""
        return AppliedJobs(self.schema_version, self.early, since=self.since_ts)

    def to_json(self) -> str:
        """As it is kept."""
        return json.dumps({"layout": _LAYOUT, **asdict(self), "early": sorted(self.early)}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of ``to_json``; ``ValueError`` for another layout."""
        found: dict[str, Any] = json.loads(text)
        if found.pop("layout", None) != _LAYOUT:
            raise ValueError(f"its layout is not {_LAYOUT}")
        found.setdefault("since_ts", found["commit_ts"] or 0)
        return cls(**found | {"holder": LakeWriter(**found["holder"]), "early": frozenset(found["early"])})
