"""``SourceConfig`` as options of ``format("tidb_binlog")``, and back. Pure.

Promises: ``source_of(options_of(c)) == c``; names are case-insensitive, as in Spark; an unknown option or an
invalid value raises a ``ConfigError`` that names it.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from pyspark_tidb_binlog.conf.model import SourceConfig
from pyspark_tidb_binlog.schemas.errors import ConfigError

_CONFIG_NAMES = {
    "pumps": "pumps",
    "clusterId": "cluster_id",
    "delivery": "delivery",
    "startingCommitTs": "starting_commit_ts",
    "endingCommitTs": "ending_commit_ts",
    "maxBytesPerTrigger": "max_bytes_per_trigger",
    "maxPendingBytes": "max_pending_bytes",
    "failOnDataLoss": "fail_on_data_loss",
    "pairingBuckets": "pairing_buckets",
    "wakeIdlePumps": "wake_idle_pumps",
}


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
    orphan_ask_after: float = 1.0
    """``PairConfig.orphan_ask_after``, seconds: every Pump may be read this far beyond R, so that orphans become old enough."""
    bucket_ids: tuple[int, ...] = ()
    """The pairing buckets, ``buckets.bucket_ids``; without this option they are numbered, ``pairingBuckets`` of them, at least one."""


_STREAM_NAMES = {
    "stopFile": "stop_file",
    "pumpPatience": "patience",
    "readPatience": "read_patience",
    "packed": "packed",
    "orphanAskAfter": "orphan_ask_after",
    "bucketIds": "bucket_ids",
}


def options_of(config: SourceConfig, extra: StreamOptions | None = None) -> dict[str, str]:
    """The options that represent ``config``."""
    extra = extra or StreamOptions()
    options = {name: _text(getattr(config, attribute)) for name, attribute in _CONFIG_NAMES.items()}
    return options | {name: _text(getattr(extra, attribute)) for name, attribute in _STREAM_NAMES.items()}


def source_of(options: Mapping[str, str]) -> SourceConfig:
    """The settings in ``options``.

    Raises:
        ConfigError: an option is unknown, missing or invalid.
    """
    given = {name.lower(): value for name, value in options.items()}
    known = {name.lower() for name in (*_CONFIG_NAMES, *_STREAM_NAMES, "path")}
    if unknown := sorted(set(given) - known):
        raise ConfigError(f"format tidb_binlog has no option {', '.join(unknown)}; it has {', '.join(sorted(_CONFIG_NAMES))}")
    defaults = {f.name: f.default for f in fields(SourceConfig) if f.default is not MISSING}
    values: dict[str, Any] = {}
    for name, attribute in _CONFIG_NAMES.items():
        text = given.get(name.lower())
        values[attribute] = defaults[attribute] if text is None else _value(name, text, type(defaults[attribute]))
    if not values["pumps"]:
        raise ConfigError(
            "format tidb_binlog needs the option pumps: host:port,host:port or the registry's URL, http://host:port or pd://host:port"
        )
    try:
        return SourceConfig(**values)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def stream_options_of(options: Mapping[str, str]) -> StreamOptions:
    """The options that only the Spark source has."""
    given = {name.lower(): value for name, value in options.items()}
    return StreamOptions(
        given.get("stopfile", ""),
        _value("pumpPatience", given.get("pumppatience", "60.0"), float),
        _value("readPatience", given.get("readpatience", "86400.0"), float),
        _value("packed", given.get("packed", "false"), bool),
        _value("orphanAskAfter", given.get("orphanaskafter", "1.0"), float),
        _bucket_ids(given),
    )


def _bucket_ids(given: Mapping[str, str]) -> tuple[int, ...]:
    if ids := given.get("bucketids"):
        return tuple(_value("bucketIds", text, int) for text in ids.split(","))
    return tuple(range(max(1, _value("pairingBuckets", given.get("pairingbuckets", "0"), int))))


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(name: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"option {name} is {text!r}: give true or false")
        return text.lower() == "true"
    try:
        return kind(text)
    except ValueError as error:
        raise ConfigError(f"option {name} is {text!r}: give a number") from error
