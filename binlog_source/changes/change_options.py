"""The options of ``format("tidb_binlog")`` for changes, and the options that follow from them for reading the Pumps. Pure.

Promises: names are case-insensitive, as in Spark; an unknown option or an invalid value raises a ``ConfigError`` that names it.
"""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark_tidb_binlog.binlog_source.source.options import FORMAT, PROTOCOL, names_of_options, options_of
from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.conf.setting import nearest
from pyspark_tidb_binlog.schemas.changes.table_names import NamedTable, NamedTables
from pyspark_tidb_binlog.schemas.changes.typed_cells import InvalidDates
from pyspark_tidb_binlog.schemas.errors import ConfigError
from pyspark_tidb_binlog.schemas.events import Delivery, ts_at

CHANGES = "changes"
OPS = ("insert", "update", "delete", "ddl")
RECORDED_OPTION = "recorded"
_NAMES = (
    FORMAT,
    RECORDED_OPTION,
    "table",
    "tables",
    "ops",
    "historyTimeout",
    "historyLag",
    "schemaEvolution",
    "schemaCommitTs",
    "invalidDates",
    "heartbeats",
    "readPartitions",
    "startingTimestamp",
    "endingTimestamp",
)
_OF_CLUSTER = ("pumps", "clusterId", "tidbStatus", "compressor", "sslCa", "sslCert", "sslKey", "certAllowedCn")
_OF_SETTINGS = {
    "spark.gone-pumps": "option gonePumps",
    "spark.fail-on-data-loss = false": "option failOnDataLoss = false",
    "initial-commit-ts": "startingCommitTs",
    "spark.tidb-status": "option tidbStatus",
    "spark.cluster-id": "option clusterId",
}
_OF_SPAN = ("startingCommitTs", "endingCommitTs")
_INSIDE = ("stopFile",)
"""Options of the reading that are not for users."""


class SchemaEvolution(enum.StrEnum):
    """What happens when a DDL changes the table whose changes are read with its own columns."""

    FAIL = "fail"
    """The query ends with an error that names the DDL."""
    IGNORE = "ignore"
    """The columns stay those of the start: later ones are left out, dropped ones are null."""


@dataclass(frozen=True, slots=True)
class ChangeOptions:
    """How binlogs become changes."""

    table: NamedTable | None = None
    """The table whose own columns the rows have; None: all tables, as VARIANT."""
    tables: NamedTables = field(default_factory=NamedTables)
    ops: tuple[str, ...] = OPS
    history_timeout: float = 300.0
    """``HistoryFeed.timeout``, seconds."""
    history_lag: float = 5.0
    """``HistoryFeed.lag``, seconds."""
    evolution: SchemaEvolution = SchemaEvolution.FAIL
    schema_ts: int = -1
    """The ts whose schema typed columns have; -1: that of the start."""
    invalid_dates: InvalidDates = InvalidDates.NULL
    heartbeats: bool = False
    read_partitions: int = 4
    """Spark partitions into which the span of a batch is cut, if it is long."""

    def names(self) -> tuple[NamedTable, ...]:
        """The tables that are asked for, if each is named in full; none: any table may be."""
        return (self.table,) if self.table is not None else self.tables.names()


def is_protocol(options: Mapping[str, str]) -> bool:
    """Whether rows are binlogs as the Pumps deliver them.

    Raises:
        ConfigError: option ``format`` is neither.
    """
    asked = _lowered(options).get(FORMAT, CHANGES).lower()
    if asked not in (CHANGES, PROTOCOL):
        raise ConfigError(f"option format is {asked!r}: give {CHANGES} (the default) or {PROTOCOL}")
    if asked == PROTOCOL and recorded_folder(options) is not None:
        raise ConfigError(f"a recorded case is read as changes only: remove option format, or option {RECORDED_OPTION}")
    return asked == PROTOCOL


def recorded_folder(options: Mapping[str, str]) -> str | None:
    """The folder of the recorded case that is read; None: Pumps are."""
    return _lowered(options).get(RECORDED_OPTION)


def change_options_of(options: Mapping[str, str]) -> ChangeOptions:
    """What ``options`` say about changes.

    Raises:
        ConfigError: an option is invalid, or two exclude each other.
    """
    given = _lowered(options)
    known = {name.lower() for name in (*_NAMES, *names_of_options(), *_INSIDE, "path")}
    if unknown := sorted(set(given) - known):
        offered = sorted({*_NAMES, *names_of_options()})
        meant = "".join(f"did you mean {name}? " for name in nearest(unknown[0], offered))
        raise ConfigError(f"format tidb_binlog has no option {', '.join(unknown)}; {meant}it has {', '.join(offered)}")
    beside = [name for name in names_of_options() if name.lower() in given and name not in _OF_SPAN]
    if RECORDED_OPTION in given and beside:
        raise ConfigError(f"option {RECORDED_OPTION} reads files, and no Pump: leave out {', '.join(beside)}")
    if "table" in given and "tables" in given:
        raise ConfigError("give either table (its own columns) or tables (all columns in before and after), not both")
    table = NamedTable.of(given["table"], "option table") if given.get("table") else None
    ops = tuple(word.strip().lower() for word in given.get("ops", ",".join(OPS)).split(",") if word.strip())
    if not ops or set(ops) - set(OPS):
        raise ConfigError(f"option ops is {given['ops']!r}: give some of {', '.join(OPS)}")
    if _whole(given, "schemaCommitTs", -1) < -1:
        raise ConfigError(f"option schemaCommitTs is {given['schemacommitts']!r}: give a TSO")
    return ChangeOptions(
        table,
        NamedTables.of(given.get("tables", "")),
        ops,
        _number(given, "historyTimeout", 300.0),
        _number(given, "historyLag", 5.0),
        SchemaEvolution(_one_of(given, "schemaEvolution", tuple(SchemaEvolution))),
        _whole(given, "schemaCommitTs", -1),
        InvalidDates(_one_of(given, "invalidDates", tuple(InvalidDates))),
        _one_of(given, "heartbeats", ("false", "true")) == "true",
        max(1, _whole(given, "readPartitions", 4)),
    )


def source_options(config: DrainerConfig) -> dict[str, str]:
    """The options for changes of the cluster that a Drainer's settings name: its Pumps, how they are reached, and its DDL history."""
    options = options_of(config.source)
    return {name: options[name] for name in _OF_CLUSTER}


def reading_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options for reading the Pumps, sorted delivery among them: complete transactions only.

    Raises:
        ConfigError: another delivery is asked for, or a start or an end is given twice.
    """
    given = _lowered(options)
    if given.get("delivery", "") not in ("", Delivery.SORTED):
        raise ConfigError("changes are read from complete transactions: leave option delivery out (it is sorted), or set format=protocol")
    for side, last in (("starting", False), ("ending", True)):
        text = given.get(f"{side}timestamp")
        if text is None:
            continue
        if given.get(f"{side}committs"):
            raise ConfigError(f"give either {side}CommitTs or {side}Timestamp, not both")
        given[f"{side}committs"] = str(ts_at(f"{side}Timestamp", text, last=last))
    for side, unset in (("starting", -1), ("ending", 0)):
        if _whole(given, f"{side}CommitTs", unset) < unset:
            raise ConfigError(f"option {side}CommitTs is {given[f'{side}committs']!r}: give a TSO, or leave it out")
    reading = {name: text for name, text in given.items() if name not in {own.lower() for own in _NAMES}}
    return reading | {"delivery": str(Delivery.SORTED), FORMAT: PROTOCOL}


def bound_as_given(side: str, options: Mapping[str, str], otherwise: str) -> str:
    """The ``starting`` or ``ending`` bound of a span with the option that gives it; ``otherwise``: none does."""
    given = _lowered(options)
    return next(
        (f"{name} = {given[name.lower()]}" for name in (f"{side}Timestamp", f"{side}CommitTs") if given.get(name.lower())), otherwise
    )


def in_options(message: str) -> str:
    """``message`` with the names of options in the place of those of the drainer's settings."""
    for setting, option in _OF_SETTINGS.items():
        message = message.replace(setting, option)
    return message


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def _one_of(given: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    """The value of an option; the first one is the default."""
    value = given.get(name.lower(), str(values[0])).lower()
    if value not in values:
        raise ConfigError(f"option {name} is {value!r}: give {' or '.join(map(str, values))}")
    return value


def _number(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(name.lower())
    try:
        found = default if text is None else float(text)
    except ValueError as error:
        raise ConfigError(f"option {name} is {text!r}: give a number") from error
    if not 0 <= found < math.inf:
        raise ConfigError(f"option {name} is {text!r}: give a number of seconds from 0 on")
    return found


def _whole(given: Mapping[str, str], name: str, default: int) -> int:
    """A number that has every digit that was given."""
    text = given.get(name.lower())
    try:
        return default if text is None else int(text)
    except ValueError as error:
        raise ConfigError(f"option {name} is {text!r}: give a whole number") from error
