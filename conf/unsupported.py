"""Settings of the real Drainer and Pump that are refused, and settings that are accepted without an effect. Pure.

Promises: no value silently does nothing. A setting of a feature that will never be built is an error, which names the alternative. A
setting without a meaning here is accepted, and the log says so in a line.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_tidb_binlog.conf.kinds import toml_of
from pyspark_tidb_binlog.conf.setting import Setting


@dataclass(frozen=True, slots=True)
class GivenValue:
    """A value that file, environment or flags set."""

    value: object
    origin: str
    """Where: ``drainer.toml: syncer.safe-mode``."""


_OF_SECURITY = ("ssl-ca", "ssl-cert", "ssl-key", "cert-allowed-cn")

_CHOSEN_RULES = "syncer.table-migrate-rule"

_ORACLE = "Oracle is no target of this program: replicate to MySQL, MariaDB or TiDB, or keep the real Drainer for it"
_ZOOKEEPER = "this program does not ask ZooKeeper: name the brokers in syncer.to.kafka-addrs"
OUT: dict[tuple[str, object], str] = {
    ("syncer.db-type", "oracle"): _ORACLE,
    ("syncer.db-type", "flash"): "the target type flash no longer exists, nor does it in the real Drainer: use mysql or tidb",
    ("syncer.to.checkpoint.type", "oracle"): _ORACLE,
}
"""What will not be built, and what to use instead."""

WITHOUT_EFFECT: dict[str, str] = {
    "detect-interval": "this program reads the list of Pumps for every batch",
    "syncer.to.kafka-version": "this program asks the brokers which requests they take; Kafka 0.11 to 4 is supported",
    "syncer.to.merge": "spark.net-change says whether the changes of a row are combined",
    "cache-binlog-count": "spark.max-bytes-per-trigger bounds the bytes that are read ahead",
    "log-rotate": "deprecated in the real program too; logs are rotated by size",
    "storage.slow_write_threshold": "the metric binlog_pump_storage_write_binlog_duration_time shows slow writes",
    "enable-debug": 'use log-level = "debug"',
    "binlog-file-size": "deprecated in the real Pump too",
    "enable-binlog-slice": "deprecated in the real Pump too",
    "binlog-slice-size": "deprecated in the real Pump too",
}
"""Why a setting means nothing here."""
_GOLEVELDB = "the index is RocksDB, not goleveldb"

_ONLY_KAFKA = (
    "kafka",
    "syncer.to.kafka-addrs kafka-version kafka-max-messages kafka-max-message-size kafka-client-id topic-name zookeeper-addrs",
)
_ONLY_FILE = ("file", "syncer.to.dir retention-time")
_ONLY_ORACLE = (
    "oracle",
    "syncer.to.oracle-service-name oracle-connect-string checkpoint.oracle-service-name checkpoint.oracle-connect-string",
)
ONLY_FOR: dict[str, tuple[str, ...]] = {
    f"syncer.to.{name}": (db_type,)
    for db_type, names in (_ONLY_KAFKA, _ONLY_FILE, _ONLY_ORACLE)
    for name in names.removeprefix("syncer.to.").split()
} | {
    "spark.kafka-options": ("kafka",),
    "syncer.to.dir": ("file", "lake"),
    "syncer.to.retention-time": ("file", "lake"),
    "spark.lake-interval": ("lake",),
    "spark.mirror-interval": ("lake",),
    "spark.reload-interval": ("lake",),
    "spark.lake-json": ("lake",),
}
"""The values of ``db-type`` without which a setting has no meaning."""
_SYNCER_OF_SQL = "worker-count txn-batch sql-mode safe-mode enable-dispatch enable-detect relay.log-dir relay.max-file-size"
_TO_OF_SQL = "host port user password encrypted_password read-timeout params sync-mode checkpoint.schema checkpoint.table"
_SPARK_OF_SQL = "net-change txn-batch-time password-file socket ddl-policy on-finding retry-seconds lease-timeout"
_ALSO_FOR = {"spark.retry-seconds": "kafka", "spark.lease-timeout": "lake"}
"""Of ``ONLY_FOR_SQL``, what a target of another ``db-type`` has too."""
ONLY_FOR_SQL: frozenset[str] = frozenset(
    f"{table}.{name}"
    for table, names in (("syncer", _SYNCER_OF_SQL), ("syncer.to", _TO_OF_SQL), ("spark", _SPARK_OF_SQL))
    for name in names.split()
)
"""Settings that mean nothing where files, a topic or a lake are the target."""
BY_ROW_ONLY: dict[str, str] = {
    "spark.txn-batch-time": "spark.atomic-rows bounds a transaction of net changes",
    "syncer.enable-detect": "two net changes of a row are never applied at the same time",
    "syncer.txn-batch": "spark.atomic-rows bounds a transaction of net changes",
    "syncer.worker-count": "spark.parts is the number of connections for net changes",
}
"""Settings that mean nothing unless ``spark.net-change`` is false, and what takes their place."""
ONLY_WITH: dict[str, str] = {
    "syncer.channel-id": "syncer.loopback-control",
    "syncer.relay.max-file-size": "syncer.relay.log-dir",
    "syncer.case-sensitive": "syncer.table-migrate-rule",
    "syncer.to.checkpoint.host": "syncer.to.checkpoint.type",
    "syncer.to.checkpoint.port": "syncer.to.checkpoint.type",
    "syncer.to.checkpoint.user": "syncer.to.checkpoint.type",
    "syncer.to.checkpoint.password": "syncer.to.checkpoint.type",
    "syncer.to.checkpoint.encrypted_password": "syncer.to.checkpoint.type",
    **{f"syncer.to.checkpoint.security.{name}": "syncer.to.checkpoint.type" for name in _OF_SECURITY},
    "metrics-interval": "metrics-addr",
    **{f"spark.upstream.{name}": "spark.upstream.host" for name in ("port", "user", "password", "encrypted_password", "security.ssl-ca")},
    **{
        f"{table}.{name}": f"{table}.ssl-ca"
        for table in ("security", "syncer.to.security", "spark.upstream.security")
        for name in _OF_SECURITY[1:]
    },
}
"""The setting without which another one has no meaning, in the real Drainer either."""


def without_effect(path: str) -> str | None:
    """Why the setting means nothing here; None: it has a meaning."""
    return _GOLEVELDB if path.startswith("storage.kv.") else WITHOUT_EFFECT.get(path)


def notes_on(given: Mapping[str, GivenValue], settings: Mapping[str, Setting]) -> list[str]:
    """The log lines about the given settings.

    Args:
        given: by path; a value equal to the default counts as not given.
        settings: every setting, by path.

    Raises:
        ValueError: a value asks for what this release does not have.
    """
    notes: dict[str, list[str]] = {}
    for path, one in given.items():
        if one.value == settings[path].default:
            continue
        why = _no_meaning(path, given, settings)
        if why is None:
            _refuse(path, given, settings)
        else:
            notes.setdefault(why, []).append(path)
    return [f"without effect here: {', '.join(paths)} ({why})" for why, paths in notes.items()] + _surprises(given)


def _surprises(given: Mapping[str, GivenValue]) -> list[str]:
    """Values that are read as the real Drainer reads them, but hardly ever mean what they say."""
    schemas = given.get("syncer.ignore-schemas")
    blank = [name for name in schemas.value if name != name.strip()] if schemas and isinstance(schemas.value, tuple) else []
    found = [f"{schemas.origin}: {name!r} begins or ends with a blank, so it matches no database" for name in blank if schemas]
    return found + _idle_rules(given)


def _idle_rules(given: Mapping[str, GivenValue]) -> list[str]:
    """Rules that no table has, and parts of rules that mean something for Oracle alone."""
    chosen = given.get(_CHOSEN_RULES)
    places = chosen.value if chosen and isinstance(chosen.value, tuple) else ()
    named = given.get("syncer.binlog-filter-rule")
    rules = named.value if named and isinstance(named.value, tuple) else ()
    used = {name for place in places for name in place.binlog_filter_rule}
    idle = [rule.name for rule in rules if rule.name not in used]
    found = [f"syncer.binlog-filter-rule.{name} has no effect: no [[{_CHOSEN_RULES}]] names it" for name in idle]
    if any(place.target_schema or place.target_table for place in places):
        found.append(f"{_CHOSEN_RULES}: a target has an effect only with Oracle. To rename a table, use [[spark.route]]")
    return found


def _no_meaning(path: str, given: Mapping[str, GivenValue], settings: Mapping[str, Setting]) -> str | None:
    db_type = _value("syncer.db-type", given, settings)
    if path in ONLY_FOR and db_type not in ONLY_FOR[path]:
        return f"only for db-type = {' or '.join(map(toml_of, ONLY_FOR[path]))}"
    if db_type not in ("mysql", "tidb") and (path in ONLY_FOR_SQL or path.startswith("syncer.to.security.")):
        if db_type != _ALSO_FOR.get(path):
            return "only for a MySQL-protocol server as the target"
    if path in BY_ROW_ONLY and _value("spark.net-change", given, settings):
        return f"only with spark.net-change = false: {BY_ROW_ONLY[path]}"
    needed = ONLY_WITH.get(path)
    if needed is not None and (needed not in given or given[needed].value == settings[needed].default):
        return f"only with {needed}"
    return without_effect(path)


def _value(path: str, given: Mapping[str, GivenValue], settings: Mapping[str, Setting]) -> object:
    """Its value where it has a constant default; None where the program has no such setting."""
    if path in given:
        return given[path].value
    return settings[path].default if path in settings else None


def _refuse(path: str, layer: Mapping[str, GivenValue], settings: Mapping[str, Setting]) -> None:
    given = layer[path]
    plain = given.value if isinstance(given.value, (str, int)) else None
    if (path, plain) in OUT:
        raise ValueError(f"{given.origin}: {OUT[path, plain]}")
    if path == "syncer.to.zookeeper-addrs":
        raise ValueError(f"{given.origin}: {_ZOOKEEPER}")
    if path == "syncer.enable-dispatch" and _value("spark.net-change", layer, settings):
        raise ValueError(
            f"{given.origin}: enable-dispatch = false keeps the upstream's transactions, but spark.net-change = true joins them. "
            "Remove spark.net-change (it is then false), or remove enable-dispatch"
        )
