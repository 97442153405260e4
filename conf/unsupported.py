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


_CHOSEN_RULES = "syncer.table-migrate-rule"
_ORACLE = "Oracle is no target of this program: replicate to MySQL, MariaDB or TiDB, or keep the real Drainer for it"
OUT: dict[tuple[str, object], str] = {
    ("syncer.db-type", "oracle"): _ORACLE,
    ("syncer.db-type", "flash"): "the target type flash no longer exists, nor does it in the real Drainer: use mysql or tidb",
    ("syncer.to.checkpoint.type", "oracle"): _ORACLE,
}
"""What will not be built, and what to use instead."""


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
        if why:
            notes.setdefault(why, []).append(path)
        else:
            _refuse(path, given, settings)
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


def _no_meaning(path: str, given: Mapping[str, GivenValue], settings: Mapping[str, Setting]) -> str:
    """Why the setting means nothing beside the others; empty: it has a meaning."""
    setting = settings[path]
    if setting.targets and _value("syncer.db-type", given, settings) not in setting.targets:
        of_sql = "mysql" in setting.targets
        return (
            "only for a MySQL-protocol server as the target"
            if of_sql
            else f"only for db-type = {' or '.join(map(toml_of, setting.targets))}"
        )
    if setting.by_row and _value("spark.net-change", given, settings):
        return f"only with spark.net-change = false: {setting.by_row}"
    if setting.needs and _value(setting.needs, given, settings) == settings[setting.needs].default:
        return f"only with {setting.needs}"
    return setting.unread or (_no_meaning(setting.needs, given, settings) if setting.needs else "")


def _value(path: str, given: Mapping[str, GivenValue], settings: Mapping[str, Setting]) -> object:
    return given[path].value if path in given else settings[path].default


def _refuse(path: str, layer: Mapping[str, GivenValue], settings: Mapping[str, Setting]) -> None:
    given = layer[path]
    plain = given.value if isinstance(given.value, (str, int)) else None
    if (path, plain) in OUT:
        raise ValueError(f"{given.origin}: {OUT[path, plain]}")
    if path == "syncer.to.zookeeper-addrs":
        raise ValueError(f"{given.origin}: this program does not ask ZooKeeper: name the brokers in syncer.to.kafka-addrs")
    if path == "syncer.enable-dispatch" and _value("spark.net-change", layer, settings):
        raise ValueError(
            f"{given.origin}: enable-dispatch = false keeps the upstream's transactions, but spark.net-change = true joins them. "
            "Remove spark.net-change (it is then false), or remove enable-dispatch"
        )
