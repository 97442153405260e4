"""``SourceConfig`` as options of ``format("tidb_binlog")``, and back. Pure.

Promises: ``source_of(options_of(c)) == c``. Names are case-insensitive, as in Spark. An unknown option or an invalid value raises a
``ConfigError`` that names it.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from pyspark_tidb_binlog.conf.model import SecurityConfig, SourceConfig
from pyspark_tidb_binlog.schemas.errors import ConfigError

_CONFIG_NAMES = {
    "pumps": "pumps",
    "tidbStatus": "tidb_status",
    "clusterId": "cluster_id",
    "delivery": "delivery",
    "startingCommitTs": "starting_commit_ts",
    "endingCommitTs": "ending_commit_ts",
    "maxBytesPerTrigger": "max_bytes_per_trigger",
    "maxPendingBytes": "max_pending_bytes",
    "failOnDataLoss": "fail_on_data_loss",
    "gonePumps": "gone_pumps",
    "wakeIdlePumps": "wake_idle_pumps",
    "compressor": "compressor",
}
FORMAT, PROTOCOL = "format", "protocol"
"""The option that says what rows are, and its value for binlogs as Pumps deliver them."""
_SECURITY_NAMES = {"sslCa": "ssl_ca", "sslCert": "ssl_cert", "sslKey": "ssl_key", "certAllowedCn": "cert_allowed_cn"}
"""Paths, which executors open too; the names as a JSON list."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Options that only the Spark source has."""

    stop_file: str = ""
    """While this file exists the stream starts no further batch; empty = no such file."""
    patience: float = 60.0
    """Seconds to wait for an answer of the Pumps when the stream starts, and of the registry. Option ``pumpPatience``."""
    read_patience: float = 86_400.0
    """Seconds that a read in a batch waits for its Pump before it fails; it continues when the Pump is back. Option ``readPatience``."""
    packed: bool = False
    """Rows are ``stages.PACKED`` instead of ``stages.RAW``, as the Drainer's own stream reads them."""
    bucket_ids: tuple[int, ...] = (0,)
    """The pairing buckets, ``buckets.bucket_ids``."""


_STREAM_NAMES = {
    "stopFile": "stop_file",
    "pumpPatience": "patience",
    "readPatience": "read_patience",
    "packed": "packed",
    "bucketIds": "bucket_ids",
}


def options_of(config: SourceConfig, extra: StreamOptions | None = None) -> dict[str, str]:
    """The options that represent ``config``, of the format ``protocol``."""
    extra = extra or StreamOptions()
    options = {name: _text(getattr(config, attribute)) for name, attribute in _CONFIG_NAMES.items()}
    options |= {name: _text(getattr(config.security, attribute)) for name, attribute in _SECURITY_NAMES.items()}
    options |= {name: _text(getattr(extra, attribute)) for name, attribute in _STREAM_NAMES.items()}
    return options | {FORMAT: PROTOCOL}


def source_of(options: Mapping[str, str]) -> SourceConfig:
    """The settings in ``options``.

    Raises:
        ConfigError: an option is unknown, missing or invalid.
    """
    given = {name.lower(): value for name, value in options.items()}
    known = {name.lower() for name in (*_CONFIG_NAMES, *_SECURITY_NAMES, *_STREAM_NAMES, FORMAT, "path")}
    if unknown := sorted(set(given) - known):
        raise ConfigError(f"format tidb_binlog has no option {', '.join(unknown)}; its options are {', '.join(sorted(names_of_options()))}")
    values = _values(SourceConfig, _CONFIG_NAMES, given)
    if not values["pumps"]:
        raise ConfigError(
            "format tidb_binlog needs the option pumps: give host:port,host:port or the registry's URL, http://host:port or pd://host:port"
        )
    try:
        return SourceConfig(**values, security=SecurityConfig(**_values(SecurityConfig, _SECURITY_NAMES, given)))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def names_of_options() -> tuple[str, ...]:
    """The options that a user may set, whatever the format."""
    return (*_CONFIG_NAMES, *_SECURITY_NAMES, "pumpPatience", "readPatience")


def stream_options_of(options: Mapping[str, str]) -> StreamOptions:
    """The options that only the Spark source has."""
    given = {name.lower(): value for name, value in options.items()}
    return StreamOptions(
        given.get("stopfile", ""),
        _value("pumpPatience", given.get("pumppatience", "60.0"), float),
        _value("readPatience", given.get("readpatience", "86400.0"), float),
        _value("packed", given.get("packed", "false"), bool),
        tuple(_value("bucketIds", text, int) for text in _names("bucketIds", given.get("bucketids", "0"))),
    )


def _values(model: type, names: Mapping[str, str], given: Mapping[str, str]) -> dict[str, Any]:
    """The fields of ``model`` by their option's name, with their defaults."""
    defaults = {f.name: f.default for f in fields(model) if f.default is not MISSING}
    found = {}
    for name, attribute in names.items():
        text = given.get(name.lower())
        found[attribute] = defaults[attribute] if text is None else _value(name, text, type(defaults[attribute]))
    return found


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(name: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"option {name} is {text!r}: give true or false")
        return text.lower() == "true"
    if kind is tuple:
        return _names(name, text)
    try:
        return kind(text)
    except ValueError as error:
        raise ConfigError(f"option {name} is {text!r}: give a number") from error


def _names(option: str, text: str) -> tuple[str, ...]:
    """A JSON list of names, or names separated by commas."""
    if not text.startswith("["):
        return tuple(name.strip() for name in text.split(",") if name.strip())
    try:
        return tuple(str(name) for name in json.loads(text))
    except ValueError as error:
        raise ConfigError(f"option {option} is {text!r}: give names separated by commas, or a JSON list") from error
