"""Which databases are replicated.

Promises: pure; names are compared case-insensitively, as in the Drainer's filter. An ignore entry takes precedence over a replicate entry.
Every entry is a regular expression: after a leading ``~`` it may match anywhere in the name, otherwise it must match the whole name.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from pyspark_tidb_binlog.conf.model import ApplyConfig
from pyspark_tidb_binlog.schemas.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TableFilter:
    """The filter of one Drainer; picklable for the executors. The default replicates everything."""

    replicate_schemas: tuple[str, ...] = ()
    ignore_schemas: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Reject an entry that is not a valid regular expression at start, where the error can name it."""
        for name in (*self.replicate_schemas, *self.ignore_schemas):
            try:
                _matcher(name)
            except re.error as error:
                raise ConfigError(
                    f"syncer.replicate-do-db or syncer.ignore-schemas: {name!r} is not a valid regular expression: {error}"
                ) from error

    @classmethod
    def of(cls, config: ApplyConfig) -> Self:
        """The filter from the settings."""
        return cls(config.replicate_do_db, config.ignore_schemas)

    def keeps(self, schema: str) -> bool:
        """Whether changes of this database are replicated."""
        if self.replicate_schemas and not _matches(self.replicate_schemas, schema):
            return False
        return not _matches(self.ignore_schemas, schema)


EVERYTHING = TableFilter()


def _matches(names: Sequence[str], schema: str) -> bool:
    return any(_matcher(name)(schema.lower()) for name in names)


def _matcher(name: str) -> Callable[[str], object]:
    if name.startswith("~"):
        return re.compile(name[1:], re.IGNORECASE).search
    return re.compile(name, re.IGNORECASE).fullmatch
