"""A Pump client that keeps what it is given: an upstream without Pumps."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark_tidb_binlog.schemas.errors import PumpUnavailable
from pyspark_tidb_binlog.schemas.proto import binlog_pb2


@dataclass
class Written:
    """Takes binlogs in a Pump's place."""

    payloads: list[bytes] = field(default_factory=list)

    cluster_id: int = 7

    def prewrite(self, start_ts: int, payload: bytes) -> None:
        self.payloads.append(payload)

    def prewrite_together(self, prewrites: Mapping[int, bytes]) -> Mapping[int, PumpUnavailable]:
        self.payloads += prewrites.values()
        return {}

    def outcome(self, start_ts: int, payload: bytes) -> None:
        self.payloads.append(payload)

    def forget(self, start_ts: int) -> None:
        pass

    def flush(self, timeout: float = 30.0) -> None:
        pass

    def close(self) -> None:
        pass

    def commits(self) -> list[binlog_pb2.Binlog]:
        """Complete Commits by commit_ts, as sorted delivery gives them."""
        records = [binlog_pb2.Binlog.FromString(p) for p in self.payloads]
        prewrites = {r.start_ts: r for r in records if r.tp == binlog_pb2.Prewrite}
        found = []
        for record in records:
            if record.tp == binlog_pb2.Commit:
                whole = binlog_pb2.Binlog()
                whole.CopyFrom(prewrites[record.start_ts])
                whole.tp, whole.commit_ts = record.tp, record.commit_ts
                found.append(whole)
        return sorted(found, key=lambda b: b.commit_ts)
