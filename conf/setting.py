"""Settings: their declaration on the fields of ``conf.model``, and their values from text (flags, environment), from TOML and back. Pure.

Promises: one declaration is the source of the settings file's keys, the flags, ``--help``, ``docs/settings.md`` and ``conf/*.toml``. A
field's Python name and the operator's path are independent. The path is the real Drainer's or Pump's if it has the setting, and otherwise
in the table ``[spark]``. A value is read into the type of its field, or refused with a ``TypeError`` or ``ValueError``; the caller names the
setting. Values are read as the real programs read them: keys without regard to case, switches as Go's ``ParseBool``, durations as Go's.
"""

import dataclasses
import difflib
import json
import math
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pyspark_tidb_binlog.conf.units import duration_of

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
    without_effect: str = ""
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
    HAS_OUR_VARIABLES: ClassVar[bool] = True
    """Whether each setting has a variable of ours, too: ``TIDB_BINLOG__…``. The Drainer and the Pump have."""
    WITHOUT_FIELD: ClassVar[tuple[Setting, ...]] = ()
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


def without_effect(path: str, default: object, why: str, flag: str = "", *, in_file: bool = True) -> Setting:
    """A setting of the real program that has no field, and no effect."""
    return Setting(path, (), type(default), default, f"without effect here: {why}", flag, in_file=in_file, without_effect=why)


def nested(name: str, model: type[T], **common: Any) -> T:
    """A field that holds the settings of another type: those of the TOML table ``name``. ``common``: ``targets`` and ``needs`` of all that have none."""
    return field(default_factory=model, metadata={"table": name, "common": common})


def settings_of(model: type) -> tuple[Setting, ...]:
    """Every setting of a configuration type, in the order of its fields; then those that nothing reads."""
    return (*_settings_in(model, "", (), {}), *(model.WITHOUT_FIELD if issubclass(model, Program) else ()))


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


PAIRS = tuple[tuple[str, str], ...]
SWITCHES = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}
"""What a switch may be as text, in lower case, as Go's programs take it."""
_NAMES: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    tuple[str, ...]: "a list of strings",
    tuple[int, ...]: "a list of whole numbers",
    PAIRS: "a table of names and values",
}


class WrongItem(ValueError):
    """A value inside a list of tables is wrong; the message says which."""


def kind_words(kind: object) -> str:
    """What a value of this kind is: ``a whole number``."""
    if item_type(kind) is not None:
        return "a list of tables"
    return _NAMES.get(kind) or str(kind)


def unknown(origin: str, path: str, known: Iterable[str]) -> ValueError:
    """The error for a key that is no setting, with the nearest setting or table of settings."""
    names = tuple(known)
    tables = {name.rpartition(".")[0] for name in names if "." in name}
    return ValueError(f"{origin}: unknown setting {path!r}{did_you_mean(path, (*names, *sorted(tables)), '{!r}')}")


def did_you_mean(word: str, known: Iterable[str], form: str = "{}") -> str:
    """The end of an error, ``; did you mean a or b?``; empty if nothing is near. ``form``: of each name."""
    near = " or ".join(map(form.format, nearest(word, known)))
    return f"; did you mean {near}?" if near else ""


def nearest(path: str, known: Iterable[str]) -> list[str]:
    """The setting that ``path`` probably means: settings of that name in other tables, else the most similar spelling, if any."""
    lowered = {name.lower(): name for name in known}
    name = path.lower().rpartition(".")[2]
    same = [lowered[one] for one in lowered if one.rpartition(".")[2] == name]
    alike = difflib.get_close_matches(path.lower(), lowered, 3) if len(path) > 2 else []
    # A long table in common makes no names alike.
    alike = [one for one in alike if difflib.SequenceMatcher(None, name, one.rpartition(".")[2]).ratio() >= 0.6]
    return same[:3] or [lowered[one] for one in alike[:1]]


def typed(setting: Setting, value: object, origin: str, *, text: bool) -> object:
    """``value`` as the setting's type; ``text``: a string is parsed.

    Raises:
        ValueError: it is not of that type; the message names ``origin`` and the value, unless that is secret.
    """
    try:
        return read_text(setting.kind, value) if text and isinstance(value, str) else read_toml(setting.kind, value)
    except WrongItem as error:
        raise ValueError(f"{origin}: {error}") from None
    except (TypeError, ValueError, OverflowError):
        shown = "the value" if setting.secret else repr(value)
        raise ValueError(f"{origin}: {shown} is not {kind_words(setting.kind)}") from None


def read_text(kind: object, text: str) -> object:
    """A value of a flag or a variable."""
    items = [item.strip() for item in text.split(",") if item.strip()]
    if kind is bool:
        return read_toml(kind, SWITCHES.get(text.lower()))
    if kind is int:
        return read_toml(kind, int(text, 0) if text.lower().lstrip("+-").startswith(("0x", "0o", "0b")) else int(text))
    if kind is float:
        return read_toml(kind, float(text))
    if kind == tuple[int, ...]:
        return read_toml(kind, list(map(int, items)))
    if kind == tuple[str, ...]:
        return tuple(items)
    if item_type(kind) is not None and not text:
        return ()
    if item_type(kind) is not None or (kind == PAIRS and text.lstrip().startswith("{")):
        return read_toml(kind, tomllib.loads(f"value = {text}")["value"])
    if kind == PAIRS:
        return tuple(
            (name.strip(), value.strip()) if equals else _refuse() for name, equals, value in (one.partition("=") for one in items)
        )
    return read_toml(kind, text)


def read_toml(kind: object, value: object) -> object:
    """A value of the file."""
    if isinstance(kind, str):
        return _of_kind(kind, value)
    if kind is float and type(value) in (int, float):
        number = float(typing.cast(float, value))
        return number if math.isfinite(number) else _refuse()
    if kind in (bool, int, str):
        return value if type(value) is kind and _fits(value) else _refuse()
    if kind == PAIRS and isinstance(value, dict):
        return tuple(_pairs(value, ""))
    model = item_type(kind)
    if model is not None:
        return _items(model, value)
    wanted = int if kind == tuple[int, ...] else str
    if kind in (tuple[int, ...], tuple[str, ...]) and isinstance(value, (list, tuple)):
        return tuple(value) if all(type(item) is wanted and _fits(item) for item in value) else _refuse()
    return _refuse()


def _pairs(table: Mapping[str, object], before: str) -> typing.Iterator[tuple[str, str]]:
    """A name with dots may be quoted, or be a key with dots, which TOML reads as tables."""
    for name, item in table.items():
        if isinstance(item, dict):
            yield from _pairs(item, f"{before}{name}.")
        else:
            yield before + name, str(item) if type(item) in (str, int, float) else _refuse()


def _fits(value: object) -> bool:
    """Whether it is no number, or one that 64 bits hold."""
    return not isinstance(value, int) or -(1 << 63) <= value < 1 << 64


def _of_kind(kind: str, value: object) -> object:
    if kind == NAMES and isinstance(value, (list, tuple)):
        return read_toml(tuple[str, ...], value)
    if kind in (DURATION, DAYS) and type(value) is int:
        value = str(value)
    if not isinstance(value, str):
        _refuse()
    if kind == DURATION:
        return duration_of(value) if not value.strip().isdigit() or not int(value) else _refuse()
    if kind == NAMES:
        return tuple(value.split(",")) if value else ()
    return value.lower() if kind == LEVEL else value


def _items(model: type, value: object) -> tuple[object, ...]:
    if is_named(model):
        named = value if isinstance(value, dict) else _refuse()
        return tuple(_item(model, one, key, name=key) for key, one in named.items())
    listed = value if isinstance(value, (list, tuple)) else _refuse()
    return tuple(_item(model, one, f"number {number}") for number, one in enumerate(listed, 1))


def _item(model: type, value: object, which: str, **more: object) -> object:
    if dataclasses.is_dataclass(value):
        return value
    if not isinstance(value, dict):
        raise WrongItem(f"{which} is not a TOML table")
    known = {one.path.lower(): one for one in settings_of(model) if one.path not in more}
    found = dict(more)
    for path, inner in leaves(value, "", known):
        one = known.get(path.lower())
        if one is None:
            raise WrongItem(str(unknown(which, path, (setting.path for setting in known.values()))))
        try:
            found[one.fields[-1]] = read_toml(one.kind, inner)
        except TypeError:
            raise WrongItem(f"{which}: {path}: {inner!r} is not {kind_words(one.kind)}") from None
    return model(**found)


def leaves(table: Mapping[str, object], prefix: str, known: Iterable[str]) -> typing.Iterator[tuple[str, object]]:
    """Path and value of every key; into tables of settings only. ``known``: paths in lower case."""
    for key, value in table.items():
        path = prefix + key
        lowered = path.lower()
        inner = lowered not in known and any(one.startswith(lowered + ".") for one in known)
        if inner and isinstance(value, dict):
            yield from leaves(value, path + ".", known)
        elif inner:
            raise WrongItem(f"{path} is a table: write [{path}]")
        else:
            yield path, value


def toml_of(value: object) -> str:
    """``value`` as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = (one for one in settings_of(type(value)) if not (one.path == "name" and is_named(type(value))))
        return "{" + ", ".join(f"{one.path} = {toml_of(getattr(value, one.fields[0]))}" for one in inner) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_of(item) for item in value) + "]"
    return str(value)


def text_of(kind: object, value: typing.Any) -> str:
    """``value`` as a flag has it: what ``read_text`` reads as ``value``."""
    model = item_type(kind)
    if kind == PAIRS or (model is not None and is_named(model)):
        rows = value if model is None else ((one.name, one) for one in value)
        return "{" + ", ".join(f"{toml_of(name)} = {toml_of(one)}" for name, one in rows) + "}" if value else ""
    if kind == DURATION:
        return f"{value:.9f}".rstrip("0").rstrip(".") + "s"
    if isinstance(value, tuple) and model is None:
        return ",".join(map(str, value))
    return value if isinstance(value, str) else toml_of(value) if value != () else ""


def _refuse() -> typing.NoReturn:
    raise TypeError
