"""Where settings of this project's earlier files stand now. Pure data.

Promises: a key, flag or variable of an earlier release is an error that names its new place, never another setting's value.
"""

from pyspark_tidb_binlog.conf.model import DrainerConfig, PumpConfig


def _to_spark(prefix: str, names: str) -> dict[str, str]:
    return {f"{prefix}{name}": f"spark.{name}" for name in names.split()}


MOVED: dict[type, dict[str, str]] = {
    DrainerConfig: {
        **_to_spark("source.", "pumps cluster-id delivery ending-commit-ts max-bytes-per-trigger fail-on-data-loss pairing-buckets"),
        **_to_spark("source.", "max-pending-bytes wake-idle-pumps"),
        "source.starting-commit-ts": "initial-commit-ts",
        **_to_spark("pair.", "orphan-ask-after orphan-timeout"),
        "pair.resolver": "spark.orphan-resolver",
        "syncer.drainer": "node-id",
        **_to_spark("syncer.", "atomic-rows atomic-bytes parts ddl-policy on-finding log-row-data upstream-charset upstream-collation"),
        **_to_spark("syncer.", "retries retry-seconds history-timeout history-lag lease-timeout"),
        "syncer.checkpoint-schema": "syncer.to.checkpoint.schema",
        **_to_spark("syncer.to.", "password-file socket"),
        **_to_spark("", "ddl-history checkpoint-dir delta-dir delta-retention"),
        # names of flags
        "starting-commit-ts": "initial-commit-ts",
        "resolver": "spark.orphan-resolver",
        "drainer": "node-id",
        "checkpoint-schema": "syncer.to.checkpoint.schema",
    },
    PumpConfig: {
        **_to_spark("", "registry tidb-status cluster-id labels score orphan-timeout max-message-size max-unfinished-bytes max-pulls"),
        **_to_spark("", "max-pulls-per-peer max-connections max-connections-per-peer max-file-size step-bytes slow-chaser-threshold"),
        **_to_spark("", "slow-chaser-poll slow-chaser-quick-pass slow-chaser-recovery-interval slow-chaser-recovery-timeout"),
        "fake-binlog-interval": "gen-binlog-interval",
        "stop-write-at-available-space": "storage.stop-write-at-available-space",
        "sync-log": "storage.sync-log",
        "kv-chan-cap": "storage.kv_chan_cap",
    },
}
"""Old path -> new path."""


def now_at(origin: str, old: str, new: str) -> ValueError:
    """The error that names the new place."""
    table, _, key = new.rpartition(".")
    where = f"{key} in the table [{table}]" if table else f"{key} at the top of the file"
    return ValueError(f"{origin}: the setting {old!r} is now {new!r} ({where}; flag --{new})")
