"""A recorded case: the binlogs that a real cluster's Pumps delivered, each Pump's in a file, and the cluster's DDL history. Reads files.

``tests/golden/README.md`` describes the files.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark_tidb_binlog.schemas.codec.number import decode_uvarint
from pyspark_tidb_binlog.schemas.errors import ConfigError, Corruption
from pyspark_tidb_binlog.schemas.proto import binlog_pb2

RECORDED = "recorded:"
"""In the place of a registry's URL or a Pump's address: what follows is the folder of a case, or a Pump's file in it."""
_BINLOGS = ".binlogs.gz"


@dataclass(frozen=True, slots=True)
class CaseFacts:
    """What is known of a case without its binlogs."""

    directory: Path
    cluster_id: int
    start_ts: int
    end_ts: int
    databases: tuple[str, ...]
    tables: tuple[tuple[str, str], ...]

    @property
    def history(self) -> Path:
        """The recorded ``/ddl/history``."""
        return self.directory / "ddl_history.json.gz"

    @property
    def files(self) -> dict[str, Path]:
        """The file of each Pump, by the Pump's name."""
        return {path.name.removesuffix(_BINLOGS): path for path in sorted(self.directory.glob(f"pump-*{_BINLOGS}"))}


@dataclass(frozen=True, slots=True)
class RecordedCase(CaseFacts):
    """A span of binlogs recorded from a real cluster."""

    pumps: tuple[tuple[bytes, ...], ...]
    """Per Pump the payloads that it delivered, complete Commits and fakes, ascending."""

    @property
    def last_ts(self) -> int:
        """The largest ts recorded; an oracle must start above it."""
        return max([self.end_ts + 1, *(binlog_pb2.Binlog.FromString(payloads[-1]).commit_ts for payloads in self.pumps if payloads)])


def facts_of(case_dir: Path) -> CaseFacts:
    """What a case says of itself.

    Raises:
        ConfigError: the folder is not a case.
    """
    described = case_dir / "case.json"
    if not described.is_file():
        raise ConfigError(f"{case_dir} is not a recorded case: it has no case.json")
    try:
        case = json.loads(described.read_text())
        facts = CaseFacts(
            directory=case_dir,
            cluster_id=int(case["cluster_id"]),
            start_ts=int(case["start_ts"]),
            end_ts=int(case["end_ts"]),
            databases=tuple(case["databases"]),
            tables=tuple((db, table) for db, table in case["tables"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{described} does not describe a recorded case: {error!r}") from error
    numbered = {f"pump-{number}" for number in range(1, max(1, len(facts.files)) + 1)}
    if missing := sorted(numbered - set(facts.files)):
        raise ConfigError(f"{case_dir} is not a recorded case: it has no {missing[0]}{_BINLOGS}")
    if not facts.history.is_file():
        raise ConfigError(f"{case_dir} is not a recorded case: it has no {facts.history.name}")
    return facts


def load(case_dir: Path) -> RecordedCase:
    """A case with its binlogs.

    Raises:
        ConfigError: the folder is not a case, or a file is truncated.
    """
    facts = facts_of(case_dir)
    pumps = tuple(tuple(payloads_in(path)) for path in facts.files.values())
    return RecordedCase(facts.directory, facts.cluster_id, facts.start_ts, facts.end_ts, facts.databases, facts.tables, pumps)


def payloads_in(path: Path) -> Iterator[bytes]:
    """The payloads in a Pump's file, ascending by commit_ts.

    Raises:
        ConfigError: the file is missing, or is not whole.
    """
    try:
        packed = path.read_bytes()
        if not packed:
            raise EOFError("it is empty")
        data = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(
            f"{path} of a recorded case cannot be read ({error}): copy the case anew, to every machine that reads it"
        ) from error
    return delimited(data, str(path))


def delimited(data: bytes, origin: str) -> Iterator[bytes]:
    """The payloads in a sequence of (varint length, payload)."""
    at = 0
    while at < len(data):
        begin = at
        try:
            length, at = decode_uvarint(data, at)
        except Corruption as error:
            raise ConfigError(f"{origin} is truncated: its last {len(data) - begin} bytes begin a binlog") from error
        if at + length > len(data):
            raise ConfigError(f"{origin} is truncated: a binlog of {length} bytes at offset {at}, of which {len(data) - at} are there")
        yield data[at : at + length]
        at += length
