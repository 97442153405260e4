"""Asks the upstream TiDB, over SQL, whether it has new collations. [db]

Promises: reads one row of ``mysql.tidb`` and nothing else. TiDB writes ``new_collation_enabled`` there when a cluster is first set up (from
``new_collations_enabled_on_first_bootstrap``; true by default since v6.0) and never changes it. No row: set up before v4.0, so false.
"""

import dataclasses
import logging

from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, TargetConfig, UpstreamConfig
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.mysql.session import connect

_log = logging.getLogger(__name__)

_QUESTION = "SELECT VARIABLE_VALUE FROM mysql.tidb WHERE VARIABLE_NAME = 'new_collation_enabled'"
_SETTING = "spark.upstream-new-collations"
_KEPT = "utf8mb4_bin keeps its name, and pads, at a target other than TiDB"
_NOPAD = "utf8mb4_bin becomes a NO PAD collation at a target other than TiDB"
_SECONDS = 10.0


def with_collations(config: DrainerConfig) -> DrainerConfig:
    """``config`` with ``auto`` replaced by what the upstream says; the log says what was chosen, and why."""
    chosen, words = _chosen(config.apply.upstream_new_collations, config.upstream)
    if config.apply.db_type in ("mysql", "tidb"):
        _log.info("%s: %s", "new collations" if chosen else "old or unknown collations", words)
    return dataclasses.replace(config, apply=dataclasses.replace(config.apply, upstream_new_collations="true" if chosen else "false"))


def _chosen(setting: str, upstream: UpstreamConfig) -> tuple[bool, str]:
    if setting != "auto":
        return setting == "true", f"{_KEPT if setting == 'true' else _NOPAD}, because {_SETTING} = {setting}"
    if not upstream.host:
        return False, f"{_NOPAD}, which is right for every upstream: {_SETTING} = auto, and spark.upstream.host names no TiDB to ask"
    where = f"{upstream.host}:{upstream.port}"
    try:
        found = new_collations(upstream)
    except ApplyError as error:
        _log.warning(
            "spark.upstream: %s, asked as %r whether it has new collations, answers with error %s, %s. Tables that are made now get NO PAD "
            "collations, which is right for every upstream; set %s to true or false, and it is not asked",
            *(where, upstream.user, error.errno, error.words, _SETTING),
        )
        return False, f"{_NOPAD}, which is right for every upstream, because {where} did not answer"
    said = "no new_collation_enabled" if found is None else f"new_collation_enabled = {found}"
    return bool(found), f"{_KEPT if found else _NOPAD}, because mysql.tidb at {where} has {said}"


def new_collations(upstream: UpstreamConfig) -> bool | None:
    """What the upstream says; None: it has no such row.

    Raises:
        ApplyError: it cannot be reached, refuses the account, or is no TiDB.
        ConfigError: a file of ``spark.upstream.security`` cannot be used.
    """
    account = TargetConfig(
        host=upstream.host,
        port=upstream.port,
        user=upstream.user,
        password=upstream.password,
        read_timeout=_SECONDS,
        security=upstream.security,
    )
    with connect(account, ApplyConfig()) as session:
        rows = session.query(_QUESTION)
    return None if not rows else _text(rows[0][0]).strip().lower() in ("true", "1", "on")


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
