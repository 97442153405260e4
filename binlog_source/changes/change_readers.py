"""The readers of ``format("tidb_binlog")`` that give changes: a stream, and a batch of a span of timestamps. Spark shell.

They read like the protocol's readers (``source.readers``), with sorted delivery. The executors turn each batch's binlogs into changes (``span_changes``).
Offsets are the source's, so a batch that is read again gives the same rows.
"""

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import VariantVal

from pyspark_tidb_binlog.binlog_source.changes.change_decoder import DecodedAs
from pyspark_tidb_binlog.binlog_source.changes.change_options import (
    RECORDED_OPTION,
    ChangeOptions,
    bound_as_given,
    change_options_of,
    in_options,
    reading_options,
    recorded_folder,
)
from pyspark_tidb_binlog.binlog_source.changes.change_partition import ChangePartition, change_partitions
from pyspark_tidb_binlog.binlog_source.changes.known_history import known_history
from pyspark_tidb_binlog.binlog_source.changes.span_changes import ChangeReading, changes_in
from pyspark_tidb_binlog.binlog_source.cluster.discovery import discovery_of, patiently
from pyspark_tidb_binlog.binlog_source.source.offset import BinlogOffset
from pyspark_tidb_binlog.binlog_source.source.options import source_of, stream_options_of
from pyspark_tidb_binlog.binlog_source.source.readers import BinlogReader, BinlogStreamReader
from pyspark_tidb_binlog.binlog_source.wire.recorded_case import RECORDED, facts_of
from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.changes.table_shape import TableShape, shape_of
from pyspark_tidb_binlog.schemas.errors import ConfigError, NotUsableYet, PumpUnavailable
from pyspark_tidb_binlog.schemas.events import Delivery, as_time, physical_ms

_SOON_SECONDS = 60
"""How far ahead an end may lie that a batch waits for."""
_MOST_IMAGES = 50_000
"""Images of rows that are held at once."""
_POLL_SECONDS = 0.5
_REFUSED_SECONDS = 5.0
"""For how long a registry's port may refuse connections when a read begins."""
_pause = time.sleep
_log = logging.getLogger(__name__)


def reading_of(options: Mapping[str, str]) -> dict[str, str]:
    """``reading_options``. For a recorded case, the span is the case's, or a part of it.

    Raises:
        ConfigError: an option is wrong, or the folder is no case.
    """
    reading, folder = reading_options(options), recorded_folder(options)
    if folder is None:
        return reading
    change_options_of(options)
    facts = facts_of(Path(folder).absolute())
    begin, end = int(reading.get("startingcommitts", -1)), int(reading.get("endingcommitts", 0))
    return reading | {
        "pumps": f"{RECORDED}{facts.directory}",
        "tidbstatus": str(facts.history),
        "startingcommitts": str(max(begin, facts.start_ts)),
        "endingcommitts": str(min(end or facts.end_ts, facts.end_ts)),
    }


def change_reading(options: Mapping[str, str], shape: TableShape | None) -> ChangeReading:
    """How ``options`` have changes read; ``shape``: of the one table that they name.

    Raises:
        ConfigError: an option is wrong, or nothing says where the DDL history is.
    """
    reading = reading_of(options)
    asked = change_options_of(options)
    known_history(source_of(reading), asked)
    return ChangeReading(source_of(reading), stream_options_of(reading), DecodedAs(asked, shape))


def require_reachable(pumps: str) -> None:
    """Refuse Pumps whose names nobody knows, and a registry at whose port nothing listens: a typing error would be reported only after the patience
    for an outage.

    Raises:
        NotUsableYet: no name in option ``pumps`` is found, or each port of a registry refuses connections for some seconds.
    """
    scheme, _, rest = pumps.rpartition("://")
    places = [(host.strip("[]"), port) for host, _, port in (part.strip().rstrip("/").rpartition(":") for part in rest.split(",")) if host]
    for name, _ in places:
        with suppress(OSError, UnicodeError):
            socket.getaddrinfo(name, None)
            break
    else:
        if places:
            found = f"this machine finds no host of the name {' or '.join(name for name, _ in places)}"
            raise NotUsableYet(f"option pumps: {found}: correct it, or this machine's name resolution")
    until = time.monotonic() + _REFUSED_SECONDS
    while scheme and places and all(_refused(*place) for place in places):
        if time.monotonic() > until:
            raise NotUsableYet(f"option pumps: no registry listens at {rest}: check the port, and that the registry runs there")
        _pause(_POLL_SECONDS)


def _refused(host: str, port: str) -> bool:
    """Whether nothing listens there. What does not answer may do so later."""
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return False
    return False


def asked_shape(options: Mapping[str, str]) -> TableShape | None:
    """The columns of the one table that ``options`` name, by the DDL history; None: they name none.

    Raises:
        ConfigError: there is no such table.
    """
    asked = change_options_of(options)
    if asked.table is None:
        return None
    source = source_of(reading_of(options))
    known = known_history(source, asked)
    version = _schema_version(asked, source)
    history = known.fresh()
    shape = shape_of(asked.table, history, int(history.newest_version) if version is None else version, asked.invalid_dates)
    # a start says nothing about DDLs: a checkpoint may stand before it, and then it does not count
    return replace(shape, agreed=shape.version) if asked.schema_ts >= 0 else shape


def _schema_version(asked: ChangeOptions, source: SourceConfig) -> int | None:
    """That of option schemaCommitTs, else of the start; None: the newest."""
    ts = asked.schema_ts if asked.schema_ts >= 0 else source.starting_commit_ts
    return None if ts < 0 else known_history(source, asked).version_at(source, ts)


def _reached(end_ts: int, now: Callable[[], int]) -> int:
    """``end_ts``, once the upstream's time has passed it; 0: that time.

    Raises:
        ConfigError: it is more than a minute ahead.
    """
    present = now()
    if not end_ts:
        return present
    if physical_ms(end_ts) - physical_ms(present) > _SOON_SECONDS * 1000:
        raise ConfigError(
            f"endingCommitTs (endingTimestamp) is {end_ts} ({as_time(end_ts)}), and the upstream's time is {present} ({as_time(present)}): a batch reads "
            "only the past. Remove the end to read up to the present, or read a stream with the same end"
        )
    if present < end_ts:
        _log.info("waiting until the upstream's time is %s", as_time(end_ts))
    while now() < end_ts:
        _pause(_POLL_SECONDS)
    return end_ts


@contextmanager
def told_plainly() -> Iterator[None]:
    """Errors of the block name options instead of the drainer's settings, without a trace: Spark would show the trace above the reason."""
    try:
        yield
    except (ConfigError, PumpUnavailable) as error:
        raise type(error)(in_options(str(error))) from None


def changed_images(options: Mapping[str, str], after_ts: int, upto_ts: int) -> Iterator[Mapping[tuple[str, str], list[dict[str, Any]]]]:
    """The rows before and after all changes in (after_ts, upto_ts], by database and table, read in this process and given in portions.

    ``options``: of the cluster. Both ts are in the past.
    """
    span = {"startingCommitTs": str(after_ts), "endingCommitTs": str(upto_ts), "ops": "insert,update,delete", "readPartitions": "1"}
    reader, found, count = ChangeReader({**options, **span}, None), dict[tuple[str, str], list[dict[str, Any]]](), 0
    for row in (row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()):
        images = [VariantVal(image["value"], image["metadata"]).toPython() for image in (row["before"], row["after"]) if image is not None]
        found.setdefault((row["database"], row["table"]), []).extend(images)
        count += len(images)
        if count >= _MOST_IMAGES:
            yield found
            found, count = {}, 0
    yield found


class ChangeStreamReader(BinlogStreamReader):
    """``readStream``."""

    def __init__(self, options: Mapping[str, str], shape: TableShape | None) -> None:
        if recorded_folder(options) is not None:
            raise ConfigError(f"option {RECORDED_OPTION} names a finished recording, which a stream cannot follow: use spark.read")
        super().__init__(reading_of(options))
        self._reading = change_reading(options, shape)

    def initialOffset(self) -> dict[str, Any]:
        """The stream's floor."""
        with told_plainly():
            return super().initialOffset()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch."""
        with told_plainly():
            return super().latestOffset(start, limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[ChangePartition]:  # type: ignore[override]
        """The slices of the batch."""
        asked = self._reading.decoded_as.options
        with told_plainly():
            return change_partitions(super().partitions(start, end), asked.read_partitions, heartbeat=asked.heartbeats)

    def _needed_after(self, after_ts: int) -> int:
        """Everything after the checkpoint. The start in the options counts only for a query without a checkpoint."""
        return after_ts

    def _anew(self, resolved_ts: int | None) -> str:
        begin = (
            "the commit_ts up to which everything was given" if resolved_ts is None else f"{resolved_ts}, up to which everything was given"
        )
        return f"start the query with a new checkpoint directory and startingCommitTs = {begin}"

    def _require_delivery(self, offset: BinlogOffset) -> None:
        if offset.delivery is not Delivery.SORTED:
            raise ConfigError(
                f"the checkpoint was made with format=protocol and delivery {offset.delivery}, and changes are read sorted: {self._anew(offset.resolved_ts)}"
            )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of a slice."""
        assert isinstance(partition, ChangePartition)
        return changes_in(partition, self._reading)


class ChangeReader(DataSourceReader):
    """Batch ``read`` of (startingCommitTs, endingCommitTs]; without an end up to the present."""

    def __init__(self, options: Mapping[str, str], shape: TableShape | None) -> None:
        self._given, self._options = options, reading_of(options)
        self._reading = change_reading(options, shape)

    @told_plainly()
    def partitions(self) -> list[ChangePartition]:
        """The slices of the span."""
        source, patience = self._reading.source, self._reading.extra.patience
        if source.starting_commit_ts < 0:
            raise ConfigError(
                "a batch needs a start: give startingTimestamp, or startingCommitTs (0 = the beginning of what the Pumps hold)"
            )
        with closing(discovery_of(source)) as discovery:
            end = _reached(source.ending_commit_ts, lambda: patiently(discovery.now, patience))
        if end < source.starting_commit_ts:
            bounds = (bound_as_given("starting", self._given, ""), bound_as_given("ending", self._given, f"the end is {as_time(end)}"))
            raise ConfigError(f"the span ends before it begins: {', '.join(bounds)}")
        # a Pump that has joined until then is among those that are listed
        options = self._options | {"endingcommitts": str(end)}
        return change_partitions(BinlogReader(options).partitions(), self._reading.decoded_as.options.read_partitions, heartbeat=False)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of a slice."""
        if not isinstance(partition, ChangePartition):
            return iter(())  # Spark's stand-in for no partitions
        return changes_in(partition, self._reading)
