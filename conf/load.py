"""Loads settings into the frozen types of ``conf.model``: from a TOML file, the environment and flags. The later one wins.

Promises:

* A file, variables and flags of a real Drainer or Pump are read as it reads them (drainer.md 3, pump.md 3).
* An unknown key is an error with the key, its origin and the nearest known key. A value that asks for what is not built is an error, too
  (``conf.unsupported``).
* Values are typed and checked once, here. Every error is a ``ValueError``, because this package imports no other of the project.
  ``jobs.entry.cli`` reports it as a ``ConfigError``.

A setting's path is its TOML table and key: ``syncer.txn-batch``, ``spark.parts``, ``pd-urls``. Its variable is
``TIDB_BINLOG__SYNCER__TXN_BATCH`` (upper case, ``__`` for the dot, ``_`` for the dash). If the real program has a flag for the setting,
the variables ``BINLOG_SERVER_TXN_BATCH`` and ``PUMP_GC`` are read as well.

Text in flags and variables: a list is ``a,b``. Pairs are ``name=value,name=value``, or as in TOML ``{name = "a,b"}``. A switch is ``true``
or ``false``. A list of tables is as in TOML: ``[{db-name = "a", tbl-name = "b"}]``.
"""

import dataclasses
import logging
import os
import tomllib
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from pyspark_tidb_binlog.conf.kafka_options import holds_encrypted, revealed
from pyspark_tidb_binlog.conf.kinds import WrongItem, leaves, text_of, typed, unknown
from pyspark_tidb_binlog.conf.model import DrainerConfig, PumpConfig, settings_of
from pyspark_tidb_binlog.conf.setting import Setting
from pyspark_tidb_binlog.conf.unset import Values, fill_drainer, fill_pump
from pyspark_tidb_binlog.conf.unsupported import GivenValue, notes_on

C = typing.TypeVar("C")
Layer = dict[str, GivenValue]
"""What one of file, environment and flags sets, by path."""

_log = logging.getLogger(__name__)

ENVIRONMENT_PREFIX = "TIDB_BINLOG__"
REAL_PREFIXES: dict[type, str] = {DrainerConfig: "BINLOG_SERVER_", PumpConfig: "PUMP_"}
"""Prefix of the real program's variables, one for each of its flags."""
PASSWORD = "syncer.to.password"
DISPATCH, NET_CHANGE = "syncer.enable-dispatch", "spark.net-change"
_MYSQL = GivenValue("mysql", "")
_FILLS: dict[type, Callable[[Values, Mapping[str, str]], None]] = {DrainerConfig: fill_drainer, PumpConfig: fill_pump}

NOTHING: Mapping[str, object] = MappingProxyType({})
Say = Callable[[str], object]
"""Takes each line that the log is to have about the settings."""


def _say(note: str) -> None:
    _log.warning("%s", note)


def load_drainer(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
    say: Say = _say,
    otherwise: Mapping[str, object] = NOTHING,
) -> DrainerConfig:
    """The Drainer's settings.

    Args:
        file: in TOML; None: without one.
        environ: None: the process's own.
        flags: by path, as text or already of the right type.
        say: takes each line about the settings.
        otherwise: by path, what counts instead of a default.
    """
    environ = os.environ if environ is None else environ
    config = _with_password(_load(DrainerConfig, file, environ, flags, say, otherwise), environ, say)
    return _with_kafka_options(_with_upstream_password(config, environ, say), environ, say)


def load_pump(
    file: Path | None = None, environ: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None, say: Say = _say
) -> PumpConfig:
    """A Pump's settings, from the same three sources."""
    return _load(PumpConfig, file, environ, flags, say)


def flags_of(config: DrainerConfig | PumpConfig) -> dict[str, str]:
    """Flags by path from which ``load_drainer`` or ``load_pump`` makes ``config``, the password included."""
    flags = {}
    for setting in settings_of(type(config)):
        value: object = config
        for name in setting.fields:
            value = getattr(value, name)
        if setting.fields and (value != setting.default or setting.unset):
            flags[setting.path] = text_of(setting.kind, value)
    if isinstance(config, DrainerConfig) and flags.get("pd-urls"):
        flags.pop("spark.pumps", None)
    return flags


def variable_of(path: str) -> str:
    """The environment variable of a setting: ``TIDB_BINLOG__SYNCER__TO__HOST``."""
    return ENVIRONMENT_PREFIX + path.upper().replace(".", "__").replace("-", "_")


def _with_password(config: DrainerConfig, environ: Mapping[str, str], say: Say) -> DrainerConfig:
    """``config`` with the password from ``encrypted_password`` or ``password_file``, if one is set."""
    if config.checkpoint.encrypted_password:
        own = _decrypted(config.checkpoint.encrypted_password, environ, say, "syncer.to.checkpoint.encrypted_password")
        config = dataclasses.replace(config, checkpoint=dataclasses.replace(config.checkpoint, password=own))
    target = config.target
    if target.encrypted_password and target.password_file:
        raise ValueError("syncer.to.encrypted_password and spark.password-file are both set: remove one of them")
    if target.encrypted_password:
        # as in the real Drainer it wins over syncer.to.password
        password = _decrypted(target.encrypted_password, environ, say)
        return dataclasses.replace(config, target=dataclasses.replace(target, password=password))
    if not target.password_file:
        return config
    if target.password:
        raise ValueError("syncer.to.password and spark.password-file are both set: remove one of them")
    try:
        password = Path(target.password_file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "the file is not UTF-8"
        # not the decoder's own message, which contains the content
        raise ValueError(f"cannot read spark.password-file {target.password_file}: {why}") from None
    password = password.removesuffix("\n").removesuffix("\r")
    if not password:
        raise ValueError(f"spark.password-file {target.password_file} is empty")
    return dataclasses.replace(config, target=dataclasses.replace(target, password=password))


def _with_upstream_password(config: DrainerConfig, environ: Mapping[str, str], say: Say) -> DrainerConfig:
    upstream = config.upstream
    if not upstream.encrypted_password:
        return config
    password = _decrypted(upstream.encrypted_password, environ, say, "spark.upstream.encrypted_password")
    return dataclasses.replace(config, upstream=dataclasses.replace(upstream, password=password))


def _with_kafka_options(config: DrainerConfig, environ: Mapping[str, str], say: Say) -> DrainerConfig:
    """``config`` with what is encrypted in values of ``spark.kafka-options`` decrypted."""
    options = config.kafka.options
    if not any(holds_encrypted(value) for _, value in options):
        return config

    def plain(name: str, value: str) -> str:
        return revealed(value, lambda text: _decrypted(text, environ, say, f"spark.kafka-options: {name}"))

    kafka = dataclasses.replace(config.kafka, options=tuple((name, plain(name, value)) for name, value in options))
    return dataclasses.replace(config, kafka=kafka)


def _decrypted(text: str, environ: Mapping[str, str], say: Say, path: str = "syncer.to.encrypted_password") -> str:
    # only who uses it needs the library
    from pyspark_tidb_binlog.conf.encrypted import SECRET_KEY, decrypted, uses_known_key

    try:
        password = decrypted(text, environ)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if uses_known_key(environ):
        say(f"{path}: anybody can decrypt this password, because {SECRET_KEY} is not set")
    return password


def _load(
    model: type[C],
    file: Path | None,
    environ: Mapping[str, str] | None,
    flags: Mapping[str, object] | None,
    say: Say,
    otherwise: Mapping[str, object] = NOTHING,
) -> C:
    settings = {setting.path: setting for setting in settings_of(model)}
    environ = os.environ if environ is None else environ
    in_file = _from_file(file, settings) if file is not None else {}
    above = _from_environment(environ, model, settings) | _from_flags(flags or {}, settings)
    given = in_file | above
    if model is DrainerConfig:
        _adjust_switches(given, above, in_file)
    values: Values = {**otherwise, **{path: one.value for path, one in given.items()}}
    _FILLS[model](values, environ)
    for note in (*_kept_transactions(above, in_file, given), *notes_on(given, settings)):
        say(note)
    return _build(model, {settings[path].fields: value for path, value in values.items() if settings[path].fields})


def _adjust_switches(given: Layer, above: Layer, in_file: Layer) -> None:
    """Replace other spellings: the deprecated switches, the alias ``pb``, 0 for the default of ``sync-mode``."""
    for name in ("dispatch", "detect"):
        enable, disable = f"syncer.enable-{name}", f"syncer.disable-{name}"
        order = ((above, disable), (in_file, disable), (above, enable), (in_file, enable))
        found = next((layer[path] for layer, path in order if path in layer), None)
        denied = next((path == disable for layer, path in order if path in layer), False)
        given.pop(disable, None)
        if found is not None:
            given[enable] = dataclasses.replace(found, value=bool(found.value) != denied)
    kept = given.get(DISPATCH)
    if kept is not None and not kept.value and given.get("syncer.db-type", _MYSQL).value in ("", "mysql", "tidb"):
        given.setdefault(NET_CHANGE, dataclasses.replace(kept, value=False))
    for path, alias, meaning in (("syncer.db-type", "pb", "file"), ("syncer.to.sync-mode", 0, 1), ("syncer.db-type", "", "mysql")):
        if path in given and given[path].value == alias:
            given[path] = dataclasses.replace(given[path], value=meaning)


def _kept_transactions(above: Layer, in_file: Layer, given: Layer) -> list[str]:
    """The log line for ``enable-dispatch = false``, which sets ``spark.net-change``: only row operations keep the upstream's transactions."""
    if NET_CHANGE not in given or NET_CHANGE in above or NET_CHANGE in in_file:
        return []
    return [f"{given[NET_CHANGE].origin}: this setting keeps the upstream's transactions, so {NET_CHANGE} is false"]


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


def _from_environment(environ: Mapping[str, str], model: type, settings: Mapping[str, Setting]) -> Layer:
    ours = {variable_of(path): path for path in settings}
    theirs = {REAL_PREFIXES[model] + setting.flag.upper().replace("-", "_"): path for path, setting in settings.items() if setting.flag}
    found: Layer = {}
    for variable in sorted(environ):
        origin = f"environment variable {variable}"
        if variable in theirs and environ[variable]:
            path = theirs[variable]
        elif variable in ours:
            path = ours[variable]
        elif variable.startswith(ENVIRONMENT_PREFIX) and variable not in _ALL_VARIABLES:
            path = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".").replace("_", "-")
        else:
            continue
        found[path] = GivenValue(typed(_known(path, settings, origin), environ[variable], origin, text=True), origin)
    return found


def _from_flags(flags: Mapping[str, object], settings: Mapping[str, Setting]) -> Layer:
    found: Layer = {}
    for path, value in flags.items():
        origin, setting = f"flag --{path}", _known(path, settings, "flags")
        text = value if isinstance(value, str) else text_of(setting.kind, value)
        found[path] = GivenValue(typed(setting, text, origin, text=True), origin)
    return found


def _known(path: str, settings: Mapping[str, Setting], origin: str) -> Setting:
    if path in settings:
        return settings[path]
    raise unknown(origin, path, settings)


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
