"""Which tables are replicated at all.

Promises: pure; names compare without regard to case, as the Drainer's filter does. An ignore entry wins over a replicate entry.
An entry that begins with ``~`` is a regular expression searched for; any other must match the whole name, and may be one too.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from conf.model import ApplyConfig
from schemas.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Route:
    """The filter of one Drainer; picklable, so executors can hold it. The default keeps everything."""

    replicate_schemas: tuple[str, ...] = ()
    ignore_schemas: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse an entry that is no regular expression while it still has a name."""
        for name in (*self.replicate_schemas, *self.ignore_schemas):
            try:
                _matcher(name)
            except re.error as error:
                raise ConfigError(f"syncer.replicate-do-db or syncer.ignore-schemas: {name!r} is no regular expression: {error}") from error

    @classmethod
    def of(cls, config: ApplyConfig) -> Self:
        """The filter that the settings describe."""
        return cls(config.replicate_do_db, config.ignore_schemas)

    def keeps(self, schema: str) -> bool:
        """Whether changes of this database are replicated."""
        if self.replicate_schemas and not _matches(self.replicate_schemas, schema):
            return False
        return not _matches(self.ignore_schemas, schema)


EVERYTHING = Route()


def _matches(names: Sequence[str], schema: str) -> bool:
    return any(_matcher(name)(schema.lower()) for name in names)


def _matcher(name: str) -> Callable[[str], object]:
    if name.startswith("~"):
        return re.compile(name[1:], re.IGNORECASE).search
    return re.compile(name, re.IGNORECASE).fullmatch
