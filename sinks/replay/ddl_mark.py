"""The text by which ``spark_state`` names the DDL of a replay: its commit_ts, its text, and whether it was executed. Pure."""

import hashlib
from dataclasses import dataclass, replace
from enum import Enum
from typing import Self

from pyspark_tidb_binlog.schemas.proto import pb_binlog_pb2 as pb


class DdlState(Enum):
    """How far a DDL is."""

    BEGUN = "ddl"
    """It may have been executed."""
    EXECUTED = "ddl-executed"
    REFUSED = "ddl-refused"
    """By the target: it was not executed."""


_STATES = {state.value: state for state in DdlState}


@dataclass(frozen=True, slots=True)
class DdlMark:
    """One DDL, as the fingerprint of a record."""

    commit_ts: int
    digest: str
    """Of its text: an early DDL shares its commit_ts with others."""
    state: DdlState = DdlState.BEGUN

    @classmethod
    def of(cls, binlog: pb.Binlog) -> Self:
        """That of a DDL that is begun."""
        return cls(binlog.commit_ts, hashlib.blake2b(binlog.ddl_query, digest_size=8).hexdigest())

    @classmethod
    def read(cls, plan: str) -> Self | None:
        """The DDL that a record names; None: it is one of rows."""
        kind, _, digest = plan.rpartition("-")
        kind, _, commit_ts = kind.rpartition("-")
        return cls(int(commit_ts), digest, _STATES[kind]) if kind in _STATES and commit_ts.isdigit() else None

    @property
    def plan(self) -> str:
        """The text of the record."""
        return f"{self.state.value}-{self.commit_ts}-{self.digest}"

    def but(self, state: DdlState) -> Self:
        """The same DDL in another state."""
        return replace(self, state=state)

    def names(self, binlog: pb.Binlog) -> bool:
        """Whether it is this one."""
        return binlog.tp == pb.DDL and self.but(DdlState.BEGUN) == DdlMark.of(binlog)
