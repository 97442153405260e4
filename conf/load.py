"""Loads settings from TOML file < environment < flags (the later wins) into the frozen types of ``conf.model``.

Promises: an unknown key is an error that names the key and its origin; values are typed and checked once, here.
Every error is a ``ValueError`` (this package imports no other of the project); ``jobs.cli`` reports it as a ``ConfigError``.

Keys are in kebab case. A setting's path is its TOML table and key: ``syncer.atomic-rows``, ``syncer.to.host``, ``ddl-history``.
In the environment the same path is ``TIDB_BINLOG__SYNCER__ATOMIC_ROWS``: upper case, ``__`` for the dot, ``_`` for the dash.
Text (environment, flags): lists are ``a,b``, pairs ``name=value,name=value``, switches ``true`` or ``false``.
"""

import dataclasses
import difflib
import os
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark_tidb_binlog.conf.model import DrainerConfig, PumpConfig

C = typing.TypeVar("C")

ENVIRONMENT_PREFIX = "TIDB_BINLOG__"
PASSWORD = "syncer.to.password"
"""The one setting whose value is never shown."""

_TABLES = {"source": "source", "pair": "pair", "target": "syncer.to", "apply": "syncer"}
"""TOML table of each nested settings type, by its field in ``DrainerConfig``."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as an operator names it."""

    path: str
    """``syncer.atomic-rows``"""
    fields: tuple[str, ...]
    """The field names that lead to it from the configuration object: ``("apply", "atomic_rows")``."""
    kind: object
    """Its annotated type."""
    default: object

    @property
    def name(self) -> str:
        """The last part of the path: ``atomic-rows``."""
        return self.path.rpartition(".")[2]


def settings_of(model: type) -> tuple[Setting, ...]:
    """Every setting of a configuration type, in the order of its fields."""
    return tuple(_walk(model, "", ()))


def load_drainer(
    file: Path | None = None, environ: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None
) -> DrainerConfig:
    """The Drainer's settings. ``flags``: by path, as text or already of the right type. ``environ`` None: the process's own."""
    return _with_password(_load(DrainerConfig, file, environ, flags))


def _with_password(config: DrainerConfig) -> DrainerConfig:
    """``config`` with the password from ``password_file``, if one is set."""
    target = config.target
    if not target.password_file:
        return config
    if target.password:
        raise ValueError("syncer.to.password and syncer.to.password-file are both set: remove one of them")
    try:
        password = Path(target.password_file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        # not the decoder's own message, which contains the content
        raise ValueError(f"cannot read syncer.to.password-file {target.password_file}: {why}") from None
    password = password.removesuffix("\n").removesuffix("\r")
    if not password:
        raise ValueError(f"syncer.to.password-file {target.password_file} is empty")
    return dataclasses.replace(config, target=dataclasses.replace(target, password=password))


def load_pump(file: Path | None = None, environ: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None) -> PumpConfig:
    """A Pump's settings, from the same three sources."""
    return _load(PumpConfig, file, environ, flags)


def _load(model: type[C], file: Path | None, environ: Mapping[str, str] | None, flags: Mapping[str, object] | None) -> C:
    settings = {s.path: s for s in settings_of(model)}
    values: dict[str, object] = {}
    if file is not None:
        values |= _from_file(file, settings)
    values |= _from_environment(os.environ if environ is None else environ, settings)
    for path, value in (flags or {}).items():
        values[path] = _typed(_known(path, settings, "flags"), value, f"flag --{path}", text=isinstance(value, str))
    return _build(model, {settings[path].fields: value for path, value in values.items()})


def _from_file(file: Path, settings: Mapping[str, Setting]) -> dict[str, object]:
    try:
        document = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read the settings file {file}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{file} is not valid TOML: {error}") from error
    return {
        path: _typed(_known(path, settings, str(file)), value, f"{file}: {path}", text=False)
        for path, value in _leaves(document, "", settings)
    }


def _from_environment(environ: Mapping[str, str], settings: Mapping[str, Setting]) -> dict[str, object]:
    values = {}
    for variable in sorted(environ):
        if variable.startswith(ENVIRONMENT_PREFIX):
            path = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".").replace("_", "-")
            if path in settings:
                values[path] = _typed(settings[path], environ[variable], f"environment variable {variable}", text=True)
            elif path not in _ALL_PATHS:
                _known(path, settings, f"environment variable {variable}")
    return values


def _leaves(table: Mapping[str, object], prefix: str, settings: Mapping[str, Setting]) -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        path = prefix + key
        if isinstance(value, dict) and any(known.startswith(path + ".") for known in settings):
            yield from _leaves(value, path + ".", settings)
        else:
            yield path, value


def _known(path: str, settings: Mapping[str, Setting], origin: str) -> Setting:
    if path in settings:
        return settings[path]
    near = difflib.get_close_matches(path, settings, 1)
    raise ValueError(f"{origin}: unknown setting {path!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def _walk(model: type, table: str, fields: tuple[str, ...]) -> Iterator[Setting]:
    kinds = typing.get_type_hints(model)
    for field in dataclasses.fields(model):
        kind = kinds[field.name]
        here = (*fields, field.name)
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            yield from _walk(kind, _TABLES[field.name] + ".", here)
        else:
            yield Setting(table + field.name.replace("_", "-"), here, kind, field.default)


def _typed(setting: Setting, value: object, origin: str, *, text: bool) -> object:
    """``value`` as the setting's type; ``text``: a string is parsed."""
    try:
        return _read_text(setting.kind, value) if text and isinstance(value, str) else _read_toml(setting.kind, value)
    except (TypeError, ValueError):
        shown = "the value" if setting.path == PASSWORD else repr(value)
        raise ValueError(f"{origin}: {shown} is not {_KIND_NAMES[setting.kind]}") from None


def _read_text(kind: object, text: str) -> object:
    if kind is bool:
        return _SWITCHES[text.lower()] if text.lower() in _SWITCHES else _refuse()
    if kind is int or kind is float or kind is str:
        return kind(text)
    items = tuple(item.strip() for item in text.split(",") if item.strip())
    if kind == tuple[int, ...]:
        return tuple(int(item) for item in items)
    if kind == _PAIRS:
        pairs = tuple(item.partition("=") for item in items)
        return tuple((name.strip(), value.strip()) if equals else _refuse() for name, equals, value in pairs)
    return items


def _read_toml(kind: object, value: object) -> object:
    if kind is float and type(value) in (int, float):
        return float(typing.cast(float, value))
    if kind in (bool, int, str):
        return value if type(value) is kind else _refuse()
    if kind == _PAIRS and isinstance(value, dict):
        return tuple((name, str(item)) for name, item in value.items())
    item_type = int if kind == tuple[int, ...] else str
    if kind in (tuple[int, ...], tuple[str, ...]) and isinstance(value, (list, tuple)):
        return tuple(value) if all(type(item) is item_type for item in value) else _refuse()
    return _refuse()


def _refuse() -> typing.NoReturn:
    raise TypeError


def _build(model: type[C], values: Mapping[tuple[str, ...], object]) -> C:
    kinds = typing.get_type_hints(model)
    arguments: dict[str, object] = {}
    for field in dataclasses.fields(typing.cast(typing.Any, model)):
        kind = kinds[field.name]
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            inner = {fields[1:]: value for fields, value in values.items() if fields[0] == field.name}
            arguments[field.name] = _build(kind, inner)
        elif (field.name,) in values:
            arguments[field.name] = values[(field.name,)]
    return model(**arguments)


_PAIRS = tuple[tuple[str, str], ...]
_SWITCHES = {"true": True, "false": False, "1": True, "0": False}
_KIND_NAMES: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    tuple[str, ...]: "a list of strings",
    tuple[int, ...]: "a list of whole numbers",
    _PAIRS: "a table of names and values",
}
_ALL_PATHS = frozenset(setting.path for model in (DrainerConfig, PumpConfig) for setting in settings_of(model))
"""A demo runs Pumps and Drainer in one environment, so variables of the other kind are not an error."""
