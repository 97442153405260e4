"""A Drainer's node without a stream: as much of one as its registration, states and pages need."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark_tidb_binlog.binlog_source.cluster.registry import Registry
from pyspark_tidb_binlog.binlog_source.drainer.node import DrainerNode
from pyspark_tidb_binlog.binlog_source.drainer.pages import ServedStream
from pyspark_tidb_binlog.jobs.stream.drainer_metrics import DrainerMetrics
from pyspark_tidb_binlog.schemas.errors import ConfigError


class _OwningNode(DrainerNode):
    """A node whose registry nobody else uses: it closes the registry."""

    def stop(self) -> None:
        super().stop()
        if self._registry is not None:
            self._registry.close()


@dataclass
class PretendedStream:
    """A stream that does what the test says, and records what the node asked of it."""

    commit_ts: Callable[[], int] = lambda: 0
    asked: list[str] = field(default_factory=list)
    resting: bool = False
    trouble: OSError | None = None
    """What a pause, a resume and each heartbeat fail with."""
    kept: int = 0
    """How often the node had it keep its state."""
    positions: dict[str, int] | None = None
    applied_at: float = field(default_factory=time.monotonic)
    progress: dict[str, object] = field(default_factory=lambda: {"holding": "apply"})
    page: Callable[[int], Mapping[str, object]] = lambda after: {"after": after}
    metrics: DrainerMetrics = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = DrainerMetrics(lambda: self.commit_ts())

    def node(self, registry: Registry | None, node_id: str = "drainer", **more: Any) -> DrainerNode:
        """A node of it on any port of this machine; ``more``: as ``DrainerNode`` takes it."""
        stream = ServedStream(
            commit_ts=lambda: self.commit_ts(),
            pump_positions=lambda: self.positions,
            applied_at=lambda: self.applied_at,
            progress=lambda: self.progress,
            metrics=self.metrics.text,
            page=lambda after: self.page(after),
            document={"": "a list", "errors/ddl": "# DDLs"}.get,
            pause=lambda: self._do("pause"),
            resume=lambda: self._do("resume"),
            rest=lambda seconds: self._do(f"rest {seconds:g}"),
            keep=self._keep,
            resting=lambda: self.resting,
            end=lambda: self.asked.append("end"),
            reload=self._reload,
        )
        return _OwningNode(registry, node_id, "127.0.0.1:0", "", stream, **more)

    def _do(self, what: str) -> None:
        if self.trouble is not None:
            raise self.trouble
        self.asked.append(what)

    def _reload(self, names: str) -> None:
        if not names.startswith("shop."):
            raise ConfigError(f"no table {names}")
        self.asked.append(f"reload {names}")

    def _keep(self) -> None:
        self.kept += 1
        if self.trouble is not None:
            raise self.trouble


def node_at(registry: Registry, commit_ts: Callable[[], int], node_id: str = "drainer") -> DrainerNode:
    """A node whose checkpoint is ``commit_ts``."""
    return PretendedStream(commit_ts).node(registry, node_id)
