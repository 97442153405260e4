"""Loads settings into the frozen types of ``conf.model``: from a TOML file, the environment and flags. The later one wins.

Promises:

* A file, variables and flags of a real Drainer or Pump are read as it reads them (drainer.md 3, pump.md 3).
* An unknown key is an error with the key, its origin and the nearest known key. No value silently does nothing: one that asks for what will never
  be built is an error that names the alternative, one without a meaning here is a line in the log.
* Values are typed and checked once, here. Every error is a ``ValueError``, because this package imports no other of the project.
  ``jobs.entry.cli`` reports it as a ``ConfigError``.

A setting's path is its TOML table and key: ``syncer.txn-batch``, ``spark.parts``, ``pd-urls``. Its variable is
``TIDB_BINLOG__SYNCER__TXN_BATCH`` (upper case, ``__`` for the dot, ``_`` for the dash). If the real program has a flag for the setting,
the variables ``BINLOG_SERVER_TXN_BATCH`` and ``PUMP_GC`` are read as well. A replay reads only Reparo's.

Text in flags and variables: a list is ``a,b``. Pairs are ``name=value,name=value``, or as in TOML ``{name = "a,b"}``. A switch is ``true``
or ``false``. A list of tables is as in TOML: ``[{db-name = "a", tbl-name = "b"}]``.
"""

import dataclasses
import logging
import os
import tomllib
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyspark_tidb_binlog.conf.kafka_options import revealed
from pyspark_tidb_binlog.conf.model import DrainerConfig, PumpConfig
from pyspark_tidb_binlog.conf.setting import (
    PAIRS,
    Program,
    Setting,
    Values,
    WrongItem,
    leaves,
    settings_of,
    text_of,
    toml_of,
    typed,
    unknown,
)

C = typing.TypeVar("C", bound=Program)


@dataclass(frozen=True, slots=True)
class GivenValue:
    """A value that file, environment or flags set."""

    value: Any
    origin: str
    """Where: ``drainer.toml: syncer.safe-mode``."""


Layer = dict[str, GivenValue]
"""What one of file, environment and flags sets, by path."""

_log = logging.getLogger(__name__)

ENVIRONMENT_PREFIX = "TIDB_BINLOG__"
PASSWORD = "syncer.to.password"
_DISPATCH, _NET_CHANGE = "syncer.enable-dispatch", "spark.net-change"
_FILE, _KAFKA_OPTIONS = "spark.password-file", "spark.kafka-options"
_MYSQL, _NOT_GIVEN = GivenValue("mysql", ""), GivenValue((), "")
_CHOSEN_RULES = "syncer.table-migrate-rule"
_ORACLE = "Oracle is no target of this program: replicate to MySQL, MariaDB or TiDB, or keep the real Drainer for it"
NOT_BUILT: dict[tuple[str, str], str] = {
    ("syncer.db-type", "oracle"): _ORACLE,
    ("syncer.db-type", "flash"): "the target type flash no longer exists, nor does it in the real Drainer: use mysql or tidb",
    ("syncer.to.checkpoint.type", "oracle"): _ORACLE,
    ("syncer.to.zookeeper-addrs", ""): "this program does not ask ZooKeeper: name the brokers in syncer.to.kafka-addrs",
}
"""What will not be built, by setting and value (empty: any value), and what to use instead."""

NO_VALUES: Mapping[str, object] = MappingProxyType({})
Say = Callable[[str], object]
"""Takes each line that the log is to have about the settings."""


def load(
    model: type[C],
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] = NO_VALUES,
    say: Say = _log.warning,
    otherwise: Mapping[str, object] = NO_VALUES,
) -> C:
    """The settings of a program.

    Args:
        model: the type of its configuration.
        file: in TOML; None: without one.
        environ: None: the process's own.
        flags: by path, as text or already of the right type.
        say: takes each line about the settings.
        otherwise: by path, what counts instead of a default.
    """
    settings = {setting.path: setting for setting in settings_of(model)}
    environ = os.environ if environ is None else environ
    in_file = _from_file(file, settings) if file is not None else {}
    above = _from_environment(environ, model, settings) | _from_flags(flags, settings)
    given = in_file | above
    if model is DrainerConfig:
        _adjust_switches(given, above, in_file, say)
    for note in _notes_on(given, settings):
        say(note)
    values: Values = {**otherwise, **{path: one.value for path, one in given.items()}}
    _reveal_passwords(values, environ, say)
    model.fill(values, environ)
    try:
        return _build(model, {settings[path].fields: value for path, value in values.items() if settings[path].fields})
    except ValueError as error:
        # what a model says of a value begins with the setting's path
        path = max((path for path in given if str(error).startswith(path)), key=len, default="")
        origin = given[path].origin.removesuffix(path) if path else ""
        raise ValueError(f"{origin}{': ' if origin[-1:].isalnum() else ''}{error}") from None


def load_drainer(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] = NO_VALUES,
    say: Say = _log.warning,
    otherwise: Mapping[str, object] = NO_VALUES,
) -> DrainerConfig:
    """The Drainer's settings; the arguments are those of ``load``."""
    return load(DrainerConfig, file, environ, flags, say, otherwise)


def flags_of(config: DrainerConfig | PumpConfig) -> dict[str, str]:
    """Flags by path from which ``load`` makes ``config``, the password included."""
    flags = {}
    for setting in settings_of(type(config)):
        value: object = reduce(getattr, setting.fields, config)
        if setting.fields and (value != setting.default or setting.unset):
            flags[setting.path] = text_of(setting.kind, value)
    if isinstance(config, DrainerConfig) and flags.get("pd-urls"):
        flags.pop("spark.pumps", None)
    return flags


def variable_of(path: str) -> str:
    """The environment variable of a setting: ``TIDB_BINLOG__SYNCER__TO__HOST``."""
    return ENVIRONMENT_PREFIX + path.upper().replace(".", "__").replace("-", "_")


def _reveal_passwords(values: Values, environ: Mapping[str, str], say: Say) -> None:
    """Replace each password that a file or an encrypted text holds. As in the real Drainer, an encrypted text wins over a plain one."""
    for path in ("syncer.to.encrypted_password", PASSWORD):
        if values.get(_FILE) and values.get(path):
            raise ValueError(f"{path} and {_FILE} are both set: remove one of them")
    if values.get(_FILE):
        values[PASSWORD] = _password_in(Path(str(values[_FILE])))
    for table in ("syncer.to", "syncer.to.checkpoint", "spark.upstream"):
        if text := values.get(path := f"{table}.encrypted_password"):
            values[f"{table}.password"] = _decrypted(path, str(text), environ, say)
    if options := values.get(_KAFKA_OPTIONS):
        values[_KAFKA_OPTIONS] = tuple(
            (name, revealed(text, partial(_decrypted, f"{_KAFKA_OPTIONS}: {name}", environ=environ, say=say)))
            for name, text in typing.cast(PAIRS, options)
        )


def _password_in(file: Path) -> str:
    try:
        password = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "the file is not UTF-8"
        # not the decoder's own message, which contains the content
        raise ValueError(f"cannot read {_FILE} {file}: {why}") from None
    password = password.removesuffix("\n").removesuffix("\r")
    if not password:
        raise ValueError(f"{_FILE} {file} is empty")
    return password


def _decrypted(path: str, text: str, environ: Mapping[str, str], say: Say) -> str:
    # only who uses it needs the library
    from pyspark_tidb_binlog.conf.encrypted import SECRET_KEY, decrypted, uses_known_key

    try:
        password = decrypted(text, environ)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if uses_known_key(environ):
        say(f"{path}: anybody can decrypt this password, because {SECRET_KEY} is not set")
    return password


def _adjust_switches(given: Layer, above: Layer, in_file: Layer, say: Say) -> None:
    """Replace other spellings: the deprecated switches, the alias ``pb``, 0 for the default of ``sync-mode``.

    Only row operations keep the upstream's transactions, which ``enable-dispatch = false`` asks for.
    """
    for name in ("dispatch", "detect"):
        enable, disable = f"syncer.enable-{name}", f"syncer.disable-{name}"
        order = ((above, disable), (in_file, disable), (above, enable), (in_file, enable))
        found = next((layer[path] for layer, path in order if path in layer), None)
        denied = next((path == disable for layer, path in order if path in layer), False)
        given.pop(disable, None)
        if found is not None:
            given[enable] = dataclasses.replace(found, value=bool(found.value) != denied)
    kept, to_sql = given.get(_DISPATCH), given.get("syncer.db-type", _MYSQL).value in ("", "mysql", "tidb")
    if kept is not None and not kept.value and to_sql and _NET_CHANGE not in given:
        given[_NET_CHANGE] = dataclasses.replace(kept, value=False)
        say(f"{kept.origin}: this setting keeps the upstream's transactions, so {_NET_CHANGE} is false")
    for path, alias, meaning in (("syncer.db-type", "pb", "file"), ("syncer.to.sync-mode", 0, 1), ("syncer.db-type", "", "mysql")):
        if path in given and given[path].value == alias:
            given[path] = dataclasses.replace(given[path], value=meaning)


def _from_file(file: Path, settings: Mapping[str, Setting]) -> Layer:
    try:
        document = tomllib.loads(file.read_text("utf-8-sig"))
    except OSError as error:
        raise ValueError(f"cannot read the settings file {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not valid TOML: {error}") from error
    lowered = {path.lower(): path for path in settings}
    found: Layer = {}
    try:
        for written, value in leaves(document, "", lowered):
            path = lowered.get(written.lower(), written)
            setting = _known(path, settings, str(file))
            if not setting.in_file:
                raise ValueError(f"{file}: {path!r} is no key of the file: use the flag -{setting.flag}")
            if path in found:
                raise ValueError(f"{file}: {path!r} is set twice, in different case: remove one of the two lines")
            origin = f"{file}: {path}"
            found[path] = GivenValue(typed(setting, value, origin, text=False), origin)
    except WrongItem as error:
        raise ValueError(f"{file}: {error}") from None
    return found


def _from_environment(environ: Mapping[str, str], model: type[Program], settings: Mapping[str, Setting]) -> Layer:
    ours = {variable_of(path): path for path in settings} if model.HAS_OUR_VARIABLES else {}
    theirs = {model.PREFIX + setting.flag.upper().replace("-", "_"): path for path, setting in settings.items() if setting.flag}
    found: Layer = {}
    for variable in sorted(environ):
        origin = f"environment variable {variable}"
        if variable in theirs and environ[variable]:
            path = theirs[variable]
        elif variable in ours:
            path = ours[variable]
        elif ours and variable.startswith(ENVIRONMENT_PREFIX) and variable not in _ALL_VARIABLES:
            path = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".").replace("_", "-")
        else:
            continue
        found[path] = GivenValue(typed(_known(path, settings, origin), environ[variable], origin, text=True), origin)
    return found


def _from_flags(flags: Mapping[str, object], settings: Mapping[str, Setting]) -> Layer:
    found: Layer = {}
    for path, value in flags.items():
        setting = _known(path, settings, origin := f"flag --{path}")
        text = value if isinstance(value, str) else text_of(setting.kind, value)
        found[path] = GivenValue(typed(setting, text, origin, text=True), origin)
    return found


def _known(path: str, settings: Mapping[str, Setting], origin: str) -> Setting:
    if path in settings:
        return settings[path]
    raise unknown(origin, path, settings)


def _notes_on(given: Layer, settings: Mapping[str, Setting]) -> list[str]:
    """The log lines about the given settings; a value equal to the default counts as not given.

    Raises:
        ValueError: a value asks for what this release does not have.
    """
    notes: dict[str, list[str]] = {}
    for path, one in given.items():
        if one.value == settings[path].default:
            continue
        why = _no_meaning(path, given, settings)
        if why:
            notes.setdefault(why, []).append(path)
        else:
            _refuse(path, given, settings)
    return [f"without effect here: {', '.join(paths)} ({why})" for why, paths in notes.items()] + list(_surprises(given))


def _surprises(given: Layer) -> Iterator[str]:
    """Values that are read as the real Drainer reads them, but hardly ever mean what they say."""
    schemas = given.get("syncer.ignore-schemas", _NOT_GIVEN)
    for name in schemas.value:
        if name != name.strip():
            yield f"{schemas.origin}: {name!r} begins or ends with a blank, so it matches no database"
    places = given.get(_CHOSEN_RULES, _NOT_GIVEN).value
    used = {name for place in places for name in place.binlog_filter_rule}
    for rule in given.get("syncer.binlog-filter-rule", _NOT_GIVEN).value:
        if rule.name not in used:
            yield f"syncer.binlog-filter-rule.{rule.name} has no effect: no [[{_CHOSEN_RULES}]] names it"
    if any(place.target_schema or place.target_table for place in places):
        yield f"{_CHOSEN_RULES}: a target has an effect only with Oracle. To rename a table, use [[spark.route]]"


def _no_meaning(path: str, given: Layer, settings: Mapping[str, Setting]) -> str:
    """Why the setting means nothing beside the others; empty: it has a meaning."""
    setting = settings[path]
    if setting.targets and _value("syncer.db-type", given, settings) not in setting.targets:
        named = f"db-type = {' or '.join(map(toml_of, setting.targets))}"
        return f"only for {'a MySQL-protocol server as the target' if 'mysql' in setting.targets else named}"
    if setting.by_row and _value("spark.net-change", given, settings):
        return f"only with spark.net-change = false: {setting.by_row}"
    if setting.needs and _value(setting.needs, given, settings) == settings[setting.needs].default:
        return f"only with {setting.needs}"
    return setting.without_effect or (_no_meaning(setting.needs, given, settings) if setting.needs else "")


def _value(path: str, given: Layer, settings: Mapping[str, Setting]) -> object:
    return given[path].value if path in given else settings[path].default


def _refuse(path: str, layer: Layer, settings: Mapping[str, Setting]) -> None:
    given = layer[path]
    if why := NOT_BUILT.get((path, str(given.value))) or NOT_BUILT.get((path, "")):
        raise ValueError(f"{given.origin}: {why}")
    if path == "syncer.enable-dispatch" and _value("spark.net-change", layer, settings):
        raise ValueError(
            f"{given.origin}: enable-dispatch = false keeps the upstream's transactions, but spark.net-change = true joins them. "
            "Remove spark.net-change (it is then false), or remove enable-dispatch"
        )


def _build(model: type[C], values: Mapping[tuple[str, ...], object]) -> C:
    arguments: dict[str, object] = {}
    kinds = typing.get_type_hints(model)
    for field in dataclasses.fields(typing.cast(typing.Any, model)):
        if "table" in field.metadata:
            inner = {fields[1:]: value for fields, value in values.items() if fields[0] == field.name}
            arguments[field.name] = _build(kinds[field.name], inner)
        elif (field.name,) in values:
            arguments[field.name] = values[(field.name,)]
    return model(**arguments)


_ALL_VARIABLES = frozenset(variable_of(setting.path) for model in (DrainerConfig, PumpConfig) for setting in settings_of(model))
"""A demo runs Pumps and Drainer in one environment, so variables of the other kind are not an error."""
