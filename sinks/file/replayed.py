"""Reads what a file sink wrote, as Reparo does: the binlogs of a range, filtered, and their text (drainer.md 14).

Promises: pure except for reading files. Files of a real Drainer and of ours are read alike. A torn record at the very end is what a Drainer was
writing: the reading ends there, where the original fails. Any other invalid record raises ``Corruption``.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

from google.protobuf.message import DecodeError

from pyspark_tidb_binlog.schemas.binlogfile import BinlogName, BinlogRecord, TornRecord, files_in, read_records, require_whole
from pyspark_tidb_binlog.schemas.codec.datum import Flag, as_bytes, as_float, as_integer, take_datum
from pyspark_tidb_binlog.schemas.codec.number import Cursor
from pyspark_tidb_binlog.schemas.ddl_tokens import QualifiedName, Token, read_name, significant, text_of, tokenize
from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.proto import pb_binlog_pb2 as pb
from pyspark_tidb_binlog.schemas.tableinfo import ColumnType
from pyspark_tidb_binlog.sinks.routing.table_filter import TableFilter
from pyspark_tidb_binlog.sinks.translate.binlog_format import commit_ts_of

_log = logging.getLogger(__name__)

Cell: TypeAlias = int | float | bytes | None
"""A value in a file: texts, times, decimals and JSON as bytes; ENUM, SET and BIT as numbers."""

_AS_TEXT = frozenset(
    {
        ColumnType.DATE,
        ColumnType.DATETIME,
        ColumnType.NEWDATE,
        ColumnType.TIMESTAMP,
        ColumnType.TIME,
        ColumnType.DECIMAL,
        ColumnType.VARCHAR,
        ColumnType.STRING,
        ColumnType.JSON,
    }
)
"""Types whose bytes are printed as text; those of others are printed as numbers."""
_EVENT_NAMES = {pb.Insert: "Insert", pb.Update: "Update", pb.Delete: "Delete"}


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """Both ends inclusive; ``stop_ts`` 0 = no end."""

    start_ts: int = 0
    stop_ts: int = 0

    def __contains__(self, commit_ts: int) -> bool:
        """Whether a binlog is in the range."""
        return commit_ts >= self.start_ts and (not self.stop_ts or commit_ts <= self.stop_ts)


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """One column of an event."""

    name: str
    tp: int
    mysql_type: str
    value: Cell
    """Of an update the old one."""
    changed: Cell
    """Of an update the new one, else None."""


# Reading.


def selected_files(directory: Path, wanted: ReplayRange) -> tuple[BinlogName, ...]:
    """The files that can hold binlogs of the range: from the last file that begins at or before its start.

    An empty file is ignored. (The original treats it as a file that begins at 0, and leaves out the file before it.)
    """
    before: BinlogName | None = None
    chosen: list[BinlogName] = []
    for file in files_in(directory):
        first_ts = file.first_ts or _first_ts(directory / file.name)
        if not first_ts:
            continue
        if first_ts <= wanted.start_ts:
            before = file
        elif wanted.stop_ts and first_ts > wanted.stop_ts:
            break
        else:
            chosen.append(file)
    return (before, *chosen) if before else tuple(chosen)


def binlogs_in(directory: Path, wanted: ReplayRange) -> Iterator[pb.Binlog]:
    """The binlogs of the range, in their order.

    Raises:
        Corruption: a file holds something else than whole binlogs, but for a torn one at the end of the last file; or a file is missing.
    """
    last = (files_in(directory) or (None,))[-1]
    files = selected_files(directory, wanted)
    require_whole(files)
    for file in files:
        try:
            for record in read_records(directory / file.name):
                if _ts_of(record, file.name) in wanted:
                    yield _parsed(record, file.name)
        except TornRecord as error:
            if file != last:
                raise
            _log.warning("the last record, which a Drainer had not finished writing, is left out: %s", error)


def kept(binlog: pb.Binlog, rules: TableFilter) -> pb.Binlog | None:
    """``binlog`` without the events that the rules leave out; None when nothing is left."""
    if binlog.tp == pb.DDL:
        name = ddl_name(binlog.ddl_query.decode(errors="replace"))
        return binlog if rules.keeps(name.schema, name.name) else None
    events = [e for e in binlog.dml_data.events if rules.keeps(e.schema_name, e.table_name)]
    return pb.Binlog(tp=binlog.tp, commit_ts=binlog.commit_ts, dml_data=pb.DMLData(events=events)) if events else None


def columns_of(event: pb.Event) -> Iterator[ColumnChange]:
    """The columns of an event, decoded."""
    for raw in event.row:
        try:
            found = pb.column.FromString(raw)
        except DecodeError as error:
            raise Corruption(f"{event.schema_name}.{event.table_name}: an event holds something that is not a column: {error}") from error
        changed = _cell(found.changed_value) if event.tp == pb.Update else None
        yield ColumnChange(found.name, found.tp[0] if found.tp else 0, found.mysql_type, _cell(found.value), changed)


def _parsed(record: BinlogRecord, name: str) -> pb.Binlog:
    try:
        return pb.Binlog.FromString(record.payload)
    except DecodeError as error:
        raise _no_binlog(record, name, error) from error


def _ts_of(record: BinlogRecord, name: str) -> int:
    try:
        return commit_ts_of(record.payload)
    except (Corruption, IndexError) as error:
        raise _no_binlog(record, name, error) from error


def _no_binlog(record: BinlogRecord, name: str, error: Exception) -> Corruption:
    where = f"{name}: the record before offset {record.end.offset}"
    return Corruption(f"{where} is not a binlog of a file sink: {error}. Is this a relay log?")


def _first_ts(path: Path) -> int:
    """The commit_ts of the first binlog; 0 for a file without one."""
    with contextlib.suppress(TornRecord):
        return next((commit_ts_of(r.payload) for r in read_records(path)), 0)
    return 0


def _cell(raw: bytes) -> Cell:
    value = take_datum(Cursor(raw))
    match value.flag:
        case Flag.NULL:
            return None
        case Flag.FLOAT:
            return as_float(value)
        case Flag.BYTES | Flag.COMPARABLE_BYTES:
            return as_bytes(value)
        case _:
            return as_integer(value)


# Text.


def printed(binlog: pb.Binlog) -> Iterator[bytes]:
    """The lines that Reparo prints for a binlog, without their ends."""
    if binlog.tp == pb.DDL:
        yield b"DDL query: " + binlog.ddl_query
        return
    for event in binlog.dml_data.events:
        yield f"schema: {event.schema_name}; table: {event.table_name}; type: {_EVENT_NAMES[event.tp]}".encode()
        for column in columns_of(event):
            head = f"{column.name}({column.mysql_type}): ".encode()
            text = cell_text(column.value, column.tp)
            yield head + (text + b" => " + cell_text(column.changed, column.tp) if event.tp == pb.Update else text)


def cell_text(value: Cell, tp: int) -> bytes:
    """A value as Go prints it."""
    match value:
        case None:
            return b"<nil>"
        case bytes():
            return value if tp in _AS_TEXT else b"[" + b" ".join(b"%d" % byte for byte in value) + b"]"
        case float():
            return _float_text(value).encode()
        case _:
            return b"%d" % value


def _float_text(value: float) -> str:
    """The shortest digits that round-trip, with an exponent below 1e-4 and from 1e6 on."""
    number = Decimal(repr(value)).normalize()
    exponent = number.adjusted()
    if not number or -5 < exponent < 6:
        return format(number, "f")
    sign, digits, _ = number.as_tuple()
    fraction = "".join(map(str, digits[1:]))
    return f"{'-' * sign}{digits[0]}{'.' if fraction else ''}{fraction}e{'-' if exponent < 0 else '+'}{abs(exponent):02}"


# The table that a DDL names.


def ddl_name(query: str) -> QualifiedName:
    """The database and table of a DDL's text, which may begin with ``use``; empty where it names none.

    Of several tables the first, of a RENAME the old name.
    """
    schema, table = "", ""
    for tokens in _statements(significant(query)):
        if tokens[0].word == "USE" and len(tokens) > 1:
            schema = tokens[1].name
            continue
        found = _named(tokens)
        schema, table = found.schema or schema, found.name or table
    return QualifiedName(schema, table)


@dataclass(frozen=True, slots=True)
class DdlParts:
    """A DDL's text, taken apart."""

    database: str
    """The current database that its ``use`` chooses; empty without one."""
    statement: str
    """The DDL itself, without ``use`` and the semicolons at the end."""


def ddl_parts(query: str) -> DdlParts:
    """The parts of what a file sink writes for a DDL: ``use `db`; DDL;``."""
    tokens = tokenize(query, backslash_escapes=False)
    database, end = "", next((i for i, t in enumerate(tokens) if t.text == ";"), len(tokens))
    head = [t for t in tokens[:end] if not t.blank]
    if len(head) == 2 and head[0].word == "USE":
        database, tokens = head[1].name, tokens[end + 1 :]
    return DdlParts(database, text_of(tokens).strip().rstrip("; \n"))


def _statements(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    return (tuple(run) for ends, run in groupby(tokens, key=lambda token: token.text == ";") if not ends)


def _named(tokens: Sequence[Token]) -> QualifiedName:
    words = [t.word for t in tokens]
    if words[0] == "TRUNCATE":
        return _name_at(tokens, 2 if words[1:2] == ["TABLE"] else 1)
    changes = words[0] in ("CREATE", "DROP", "ALTER", "RENAME")
    kind = next((w for w in words[1:24] if w in _KINDS), "") if changes else ""
    return _KINDS[kind](tokens, words.index(kind) + 1) if kind else QualifiedName("", "")


def _name_at(tokens: Sequence[Token], at: int) -> QualifiedName:
    while at < len(tokens) and tokens[at].word in ("IF", "NOT", "EXISTS"):
        at += 1
    return read_name(tokens, at)[0] if at < len(tokens) else QualifiedName("", "")


def _database_at(tokens: Sequence[Token], at: int) -> QualifiedName:
    return QualifiedName("" if tokens[0].word == "ALTER" else _name_at(tokens, at).name, "")


def _indexed_at(tokens: Sequence[Token], at: int) -> QualifiedName:
    on = next((i for i in range(at, len(tokens)) if tokens[i].word == "ON"), len(tokens))
    return _name_at(tokens, on + 1)


_KINDS: dict[str, Callable[[Sequence[Token], int], QualifiedName]] = {
    "TABLE": _name_at,
    "TABLES": _name_at,
    "VIEW": _name_at,
    "INDEX": _indexed_at,
    "DATABASE": _database_at,
    "SCHEMA": _database_at,
}
