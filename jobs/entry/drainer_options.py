"""The command line of the Drainer: the settings, and the options that count for one start only. Pure."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pyspark_tidb_binlog.conf.model import DrainerConfig
from pyspark_tidb_binlog.jobs.entry.cli import JobParser, add_progress, add_settings, add_switch, parser
from pyspark_tidb_binlog.schemas.errors import ConfigError

_NAMES = re.compile(
    r"\s*(?:`(?P<quoted_db>(?:[^`]|``)+)`|(?P<db>[^`.,]+))\s*\.\s*(?:`(?P<quoted_table>(?:[^`]|``)+)`|(?P<table>[^`,]+))\s*(?:,|$)"
)


def drainer_options() -> JobParser:
    """The command line of the Drainer."""
    options = parser("drainer", "Replicate TiDB's binlogs.")
    check = "report what would stop the stream, and end: nothing is started or changed; exit code 1 if something would, else 0"
    add_switch(options, "-check", "--check", what=check)
    options.add_argument(
        "-bootstrap",
        "--bootstrap",
        action="append",
        default=[],
        metavar="DB.TABLE,...",
        help="first copy these tables (DB.* = a whole database) from spark.upstream at the checkpoint; their rows at the target are removed. A lake loads them beside the stream",
    )
    everything = "first fill an empty target with all replicated tables, from one snapshot of spark.upstream; the same as --bootstrap '*'. Of a lake: all tables that it does not have"
    add_switch(options, "-bootstrap-all", "--bootstrap-all", what=everything)
    again = "restart an unfinished copy, at a new snapshot"
    add_switch(options, "-bootstrap-restart", "--bootstrap-restart", what=again)
    add_progress(options, "a line, with --bootstrap a live panel,")
    add_settings(options, DrainerConfig)
    return options


@dataclass(frozen=True, slots=True)
class BootstrapRequest:
    """What the command line asks to be copied. The default asks for nothing."""

    everything: bool = False
    tables: tuple[tuple[str, str], ...] = ()
    """Database and table, under the names upstream; a table ``*`` is all of the database."""
    restart: bool = False
    """Whether an unfinished copy of an earlier start begins again."""

    @classmethod
    def of(cls, given: argparse.Namespace) -> Self:
        """From the flags of ``drainer_options``.

        Raises:
            ConfigError: a name is not of the form DB.TABLE.
        """
        named: Sequence[str] = given.bootstrap
        tables = [pair for text in named if text.strip() != "*" for pair in named_tables(text)]
        everything = given.bootstrap_all or any(text.strip() == "*" for text in named)
        return cls(everything, tuple(dict.fromkeys(tables)), given.bootstrap_restart)

    @property
    def flag(self) -> str:
        """The flag that asks for it, for messages."""
        return "--bootstrap-all" if self.everything else "--bootstrap" if self.tables else "--bootstrap-restart"

    def __bool__(self) -> bool:
        """Whether it asks for anything."""
        return self.everything or bool(self.tables) or self.restart


NO_BOOTSTRAP = BootstrapRequest()


def named_tables(text: str, asking: str = "--bootstrap") -> list[tuple[str, str]]:
    """Database and table of each of ``DB.TABLE,...``; ``asking``: what names them, for messages.

    Raises:
        ConfigError: a name is not of that form.
    """
    found, at = list[tuple[str, str]](), 0
    while at < len(text) or not at:
        match = _NAMES.match(text, at)
        if match is None:
            raise ConfigError(f"{asking} {text!r}: give tables as DB.TABLE,DB.TABLE or DB.*; put names with dots or commas in `backquotes`")
        names = ((match["quoted_db"], match["db"]), (match["quoted_table"], match["table"]))
        database, table = (quoted.replace("``", "`") if quoted else bare.strip() for quoted, bare in names)
        found.append((database, table))
        at = match.end()
    return found
