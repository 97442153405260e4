"""The text that ``ctl`` prints about Drainers, DDLs and findings. Pure.

Promises: row values are shown only if the caller allows it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark_tidb_binlog.binlog_source.cluster.registry import NodeStatus
from pyspark_tidb_binlog.jobs.stream.report import Progress, SeenPump, age_of, plain, progress_in
from pyspark_tidb_binlog.schemas.events import as_time
from pyspark_tidb_binlog.schemas.findings import Finding, FindingKind, in_words
from pyspark_tidb_binlog.sinks.mysql.ddl.ddl_record import RecordedDdl

_QUERY_CHARS = 2000


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One Drainer: its entry in the registry, and its answers."""

    node: NodeStatus
    progress: Mapping[str, Any]
    """``GET /progress``; empty for a real Drainer, which has no such page."""
    status: Mapping[str, Any]
    """``GET /status``; empty if it does not answer."""
    trouble: str
    """Why the Drainer does not answer; empty if it does."""
    registered: bool = True
    """Whether ``node`` comes from a registry; else it is only an address."""
    is_other: bool = False
    """Whether another stream's Drainer answers there."""

    @property
    def name(self) -> str:
        """What it is called."""
        return f"Drainer {self.node.node_id} at {self.node.host}"

    def seen(self, now: float) -> Progress:
        """What is known of its stream; ``now``: seconds since the epoch. A real Drainer shows positions only."""
        positions = sorted((self.status.get("PumpPos") or {}).items())
        pumps = tuple(SeenPump(pump, read_upto=ts, lag_seconds=age_of(ts, now)) for pump, ts in positions)
        if self.progress:
            known = progress_in(self.progress)
            return known if known.pumps else replace(known, pumps=pumps)
        if self.trouble:
            return Progress()
        at = int(self.status.get("LastTS") or 0)
        holding = "not known: a real Drainer does not say"
        return Progress(at, age_of(at, now), holding=holding, held_seconds=age_of(at, now), state=self.node.state.value, pumps=pumps)

    def text(self) -> str:
        """Some lines: the state, how far it is, what holds it back, its Pumps, its findings."""
        progress = self.progress
        name = self.name
        if self.trouble and not self.registered:
            return f"{name}: no answer\n  {self.trouble}"
        if self.trouble:
            return f"{name}: no answer, registered as {self.node.state}\n  {self.trouble}\n  registered last: {self._at(self.node.max_commit_ts)}"
        lines = [f"{name}: {progress.get('state') or self.node.state}"]
        if progress.get("bootstrap"):
            return "\n".join([*lines, f"  the stream has not begun: {progress['bootstrap']}"])
        # Until a Pump has answered, the page of the real programs has no position.
        at = int(self.status.get("LastTS") or progress.get("resolved_ts") or 0)
        lines.append(f"  everything up to {self._at(at)} is in the target" if at else "  nothing is in the target yet")
        if progress:
            lines.append(
                f"  lag {progress['lag_seconds']:.1f} s, {progress['rows_per_second']:,.0f} rows/s; since its start {progress['transactions']:,} "
                f"transactions, {progress['row_events']:,} row events, {progress['ddls']:,} DDLs"
            )
            lines.append(f"  held back by: {progress_in(progress).held or 'nothing'}")
        else:
            lines.append("  a real Drainer does not report what holds it back: if a Pump does, it is the Pump with the lowest position")
        if progress.get("unrecorded"):
            lines.append(f"  {progress['unrecorded']}")
        positions = sorted((self.status.get("PumpPos") or {}).items(), key=lambda item: (item[1], item[0]))
        lines += [f"  Pump {pump} is read up to {self._at(ts)}" for pump, ts in positions]
        if progress.get("findings"):
            lines.append(f"  {progress['findings']:,} findings since its start, the newest:")
            lines += [f"    - {words}" for words in progress["newest_findings"]]
        return "\n".join(map(plain, lines))

    def json(self) -> str:
        """The same as one JSON object."""
        node = self.node.to_dict() if self.registered else None
        said = {"registered": node, "status": self.status, "progress": self.progress, "trouble": self.trouble}
        return json.dumps(said, ensure_ascii=False)

    def _at(self, ts: int) -> str:
        return f"{as_time(ts)} (TSO {ts})" if ts else "nothing yet"


def ddl_lines(ddls: Sequence[RecordedDdl]) -> Iterator[str]:
    """A paragraph for each DDL."""
    if not ddls:
        yield "every DDL was executed as TiDB wrote it"
    for ddl in ddls:
        how = f" ({ddl.how})" if ddl.how else ""
        yield f"{ddl.state}{how}: job {ddl.job_id}, commit_ts {ddl.commit_ts} ({as_time(ddl.commit_ts)}), cluster {ddl.cluster_id}"
        yield f"  TiDB:     {_short(ddl.query)}"
        if ddl.executed and ddl.executed != ddl.query:
            yield f"  executed: {_short(ddl.executed)}"
        yield from (f"  lost:     {loss}" for loss in ddl.losses)
        yield from (f"  refused:  {refusal}" for refusal in ddl.refusals)


def finding_lines(rows: Sequence[Mapping[str, Any]], limit: int, show_row_data: bool) -> Iterator[str]:
    """The ``limit`` newest findings, oldest of them first; ``rows`` as in the Delta table."""
    if not rows:
        yield "no findings"
    newest = sorted(rows, key=lambda row: (row["recorded_at"] is not None, row["recorded_at"]))[-limit:]
    if len(newest) < len(rows):
        yield f"{len(rows):,} findings, the newest {len(newest):,}:"
    for row in newest:
        finding = Finding(
            FindingKind(row["kind"]),
            row["words"],
            row["table"] or "",
            row["commit_ts"] or 0,
            row["key"] or "",
            -1 if row["wanted"] is None else row["wanted"],
            -1 if row["found"] is None else row["found"],
        )
        closed = f" (equal at {ts}, {as_time(ts)})" if (ts := row.get("closed_at")) else ""
        yield f"{row['recorded_at']:%Y-%m-%d %H:%M:%S} {in_words(finding, show_row_data)}{closed}"


def _short(sql: str) -> str:
    flat = plain(" ".join(sql.split()))
    return flat if len(flat) <= _QUERY_CHARS else flat[: _QUERY_CHARS - 1] + "…"
