"""The declaration of a setting on a field of ``conf.model``: its name for operators, its help, its default. Pure.

Promises: one declaration is the source of the settings file's keys, the flags, ``--help``, ``docs/settings.md`` and ``conf/*.toml``. A
field's Python name and the operator's path are independent. The path is the real Drainer's or Pump's if it has the setting, and otherwise
in the table ``[spark]``.
"""

import dataclasses
import typing
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

T = typing.TypeVar("T")
Values = MutableMapping[str, object]
"""Settings by path; those not set are missing."""

DURATION = "a duration with its unit, such as 90s, 1m or 48h (a number alone is days in TiDB Binlog)"
"""Read as seconds (float); a number alone is refused, whatever was meant by it."""
DAYS = "whole days, or a duration such as 8h"
"""Kept as text; a whole number is taken too."""
LEVEL = "debug, info, warn, error or fatal"
"""Kept as text in lower case."""
NAMES = "a string of names separated by commas, or a list"
"""Names; a string is split at its commas and nothing else, as the real Drainer does."""

OURS = "spark"
"""The table of settings that the real Drainer and Pump do not have."""

_NAMED = "name"
"""The field of an item type that takes the key of its table, for tables of tables: ``[syncer.binlog-filter-rule.KEY]``."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as an operator names it."""

    path: str
    """Table and key: ``syncer.txn-batch``; of a setting that only a flag has, the flag's name."""
    fields: tuple[str, ...]
    """The field names that lead to it from the configuration object: ``("apply", "atomic_rows")``; empty = nothing reads it."""
    kind: object
    """Its annotated type, or one of the kinds above."""
    default: object
    """Of the field; what the loader uses where nothing is set, unless ``unset`` is not empty."""
    help: str
    """One line, with the unit."""
    flag: str = ""
    """Its flag in the real program, without the dash; empty = it has none."""
    unset: str = ""
    """Not empty: what the loader uses where nothing is set, in words (``conf.unset`` has the value)."""
    in_file: bool = True
    """False: only a flag, no key of the file."""
    secret: bool = False
    """Its value is never shown."""
    targets: tuple[str, ...] = ()
    """The values of ``db-type`` without which it has no meaning; empty = it has one with each."""
    needs: str = ""
    """The setting without which it has no meaning; ``.NAME`` is one of its own table."""
    by_row: str = ""
    """Not empty: it has a meaning only if ``spark.net-change`` is false, and what takes its place otherwise."""
    unread: str = ""
    """Not empty: why no value has an effect."""

    @property
    def name(self) -> str:
        """The last part of the path: ``atomic-rows``."""
        return self.path.rpartition(".")[2]

    @property
    def table(self) -> str:
        """The path without its last part: ``syncer.to``; empty at the top."""
        return self.path.rpartition(".")[0]


class Program:
    """The whole configuration of a program; a subclass is a dataclass of settings."""

    __slots__ = ()
    PREFIX: ClassVar[str]
    """Of the real program's variables, one for each of its flags."""
    UNREAD: ClassVar[tuple[Setting, ...]] = ()
    """Settings of the real program that no field holds: accepted for the sake of its files and command lines."""
    log_level: str
    log_format: str
    log_file: str

    @staticmethod
    def fill(values: Values, environ: Mapping[str, str]) -> None:
        """Set what is not set and has no constant default."""


def setting(default: T, text: str, at: str = "", *, secret: bool = False, **more: Any) -> T:
    """A field with its help ``text``. ``at``: its path; empty = the table of its type and its own name in kebab case. ``more``: of ``Setting``."""
    told = Setting(at, (), more.pop("kind", None), default, text, secret=secret, **more)
    return field(default=default, repr=not secret, metadata={"setting": told})


def ours(default: T, text: str, name: str = "", **more: Any) -> T:
    """A field whose setting stands in ``[spark]``. ``name``: its key; empty = the field's name in kebab case."""
    return setting(default, text, f"{OURS}.{name or '?'}", **more)


def unread(path: str, default: object, why: str, flag: str = "", *, in_file: bool = True) -> Setting:
    """A setting of the real program that has no field, and no effect."""
    return Setting(path, (), type(default), default, f"without effect here: {why}", flag, in_file=in_file, unread=why)


def nested(name: str, model: type[T], **common: Any) -> T:
    """A field that holds the settings of another type: those of the TOML table ``name``. ``common``: ``targets`` and ``needs`` of all that have none."""
    return field(default_factory=model, metadata={"table": name, "common": common})


def settings_of(model: type) -> tuple[Setting, ...]:
    """Every setting of a configuration type, in the order of its fields; then those that nothing reads."""
    return (*_settings_in(model, "", (), {}), *(model.UNREAD if issubclass(model, Program) else ()))


def _settings_in(model: type, prefix: str, fields: tuple[str, ...], common: Mapping[str, Any]) -> Iterator[Setting]:
    """``prefix``: the table of those without a path of their own."""
    kinds = typing.get_type_hints(model)
    for found in dataclasses.fields(model):
        kind, here = kinds[found.name], (*fields, found.name)
        if "table" in found.metadata:
            yield from _settings_in(kind, found.metadata["table"], here, {**common, **found.metadata["common"]})
            continue
        told, name = found.metadata["setting"], found.name.replace("_", "-")
        path = (told.path or f"{prefix}.{name}").removeprefix(".").replace("?", name)
        own = {key: getattr(told, key) or value for key, value in common.items()}
        if told.needs.startswith("."):
            own["needs"] = path.rpartition(".")[0] + told.needs
        elif own.get("needs") == path:
            own["needs"] = ""
        yield dataclasses.replace(told, path=path, fields=here, kind=told.kind or kind, **own)


def item_type(kind: object) -> type | None:
    """The type of the items of a list of tables, ``tuple[TableName, ...]``; None for every other kind."""
    items = typing.get_args(kind)
    return items[0] if len(items) == 2 and items[1] is ... and dataclasses.is_dataclass(items[0]) else None  # type: ignore[return-value]


def is_named(kind: type) -> bool:
    """Whether the items stand in tables with names instead of in a list of tables."""
    return any(found.name == _NAMED for found in dataclasses.fields(kind))
