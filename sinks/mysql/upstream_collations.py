"""Asks the upstream TiDB, over SQL, whether it has new collations. [db]

Promises: reads one row of ``mysql.tidb`` and nothing else. TiDB writes ``new_collation_enabled`` there when a cluster is first set up (from
``new_collations_enabled_on_first_bootstrap``; true by default since v6.0) and never changes it. No row: set up before v4.0, so false.
"""

import dataclasses
import logging

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, TargetConfig, UpstreamConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.mysql.session import connect
from pyspark_tidb_binlog.sinks.mysql.target import as_text

_log = logging.getLogger(__name__)

_QUESTION = "SELECT VARIABLE_VALUE FROM mysql.tidb WHERE VARIABLE_NAME = 'new_collation_enabled'"
_SETTING = "spark.upstream-new-collations"
_KEPT = "at a target other than TiDB, collations keep their names, and utf8mb4_bin pads"
_BYTES = "at a target other than TiDB, every collation becomes a NO PAD _bin, because old collations compare texts as bytes"
_NOPAD = "at a target other than TiDB, utf8mb4_bin becomes a NO PAD collation, and the other collations keep their names"
_UNKNOWN = (
    f"a key in one of the others (utf8mb4_general_ci) is right only for an upstream with new collations. Set {_SETTING} to true or false"
)
_SECONDS = 10.0


def with_collations(config: DrainerConfig) -> DrainerConfig:
    """``config`` with ``auto`` replaced by the upstream's answer, if it answers; the log says what was chosen, and why."""
    chosen, words = _chosen(config.apply.upstream_new_collations, config.upstream)
    if config.apply.db_type in ("mysql", "tidb"):
        _log.info("%s collations: %s", {"true": "new", "false": "old"}.get(chosen, "unknown"), words)
    return dataclasses.replace(config, apply=dataclasses.replace(config.apply, upstream_new_collations=chosen))


def _chosen(setting: str, upstream: UpstreamConfig) -> tuple[str, str]:
    if setting != "auto":
        return setting, f"{_KEPT if setting == 'true' else _BYTES}, because {_SETTING} = {setting}"
    if not upstream.host:
        return "auto", f"{_NOPAD}: {_SETTING} = auto, and spark.upstream.host names no TiDB to ask. So {_UNKNOWN}"
    where = f"{upstream.host}:{upstream.port}"
    try:
        found = new_collations(upstream)
    except ApplyError as error:
        _log.warning(
            "spark.upstream: %s, asked as %r whether it has new collations, answers with error %s, %s. In tables that are created now %s. So %s",
            *(where, upstream.user, error.errno, error.words, _NOPAD, _UNKNOWN),
        )
        return "auto", f"{_NOPAD}, because {where} did not answer"
    said = "no new_collation_enabled" if found is None else f"new_collation_enabled = {found}"
    return "true" if found else "false", f"{_KEPT if found else _BYTES}, because mysql.tidb at {where} has {said}"


def new_collations(upstream: UpstreamConfig) -> bool | None:
    """What the upstream says; None: it has no such row.

    Raises:
        ApplyError: it cannot be reached, refuses the account, or is no TiDB.
        ConfigError: a file of ``spark.upstream.security`` cannot be used.
    """
    with connect(account_of(upstream, _SECONDS), ApplyConfig()) as session:
        rows = session.query(_QUESTION)
    return None if not rows else as_text(rows[0][0]).strip().lower() in ("true", "1", "on")


def account_of(upstream: UpstreamConfig, seconds: float) -> TargetConfig:
    """The upstream as a server that is connected to; ``seconds``: how long one answer may take."""
    named = {name: getattr(upstream, name) for name in ("host", "port", "user", "password", "security")}
    return TargetConfig(**named, read_timeout=seconds)
