"""A real Drainer's and Pump's files are taken: their keys, forms of values and deprecated switches, and what means nothing here is said."""

import dataclasses
import logging
import re
from pathlib import Path

import pytest

from pyspark_tidb_binlog.conf.load import load_drainer
from pyspark_tidb_binlog.conf.model import PumpConfig, SecurityConfig, TableName, TargetConfig
from pyspark_tidb_binlog.conf.units import days_or_duration
from tests.support.settings_file import load_pump, toml

pytestmark = pytest.mark.usefixtures("elsewhere")

SAMPLES = Path(__file__).parent / "samples"
"""The annotated files of TiDB Binlog v7.1 itself."""


@pytest.mark.shows("a real drainer.toml")
def test_a_drainers_own_file_is_taken_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    config = load_drainer(SAMPLES / "drainer.toml", {})
    assert (config.addr, config.data_dir, config.source.pumps) == ("127.0.0.1:8249", "data.drainer", "pd://127.0.0.1:2379")
    assert config.apply.ignore_schemas == ("INFORMATION_SCHEMA", "PERFORMANCE_SCHEMA", "mysql")
    assert config.target == TargetConfig(host="127.0.0.1")
    assert [record.getMessage() for record in caplog.records] == [
        "without effect here: detect-interval (this program reads the list of Pumps for every batch)",
        "without effect here: syncer.channel-id (only with syncer.loopback-control)",
    ]


def uncommented(text: str) -> str:
    """The sample with the settings that it only shows, without the keys that appear twice and those of other targets."""
    text = text.partition("# Uncomment this if you want to use file as db-type.")[0]
    return re.sub(r"^ *# ?(?=(\[|[a-z_A-Z0-9-]+ = ?))", "", text, flags=re.M)


@pytest.mark.shows("pump pd-urls", "a real pump.toml")
def test_a_pumps_own_file_is_taken_as_it_is_and_uncommented(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = load_pump(SAMPLES / "pump.toml", {})
    assert config == PumpConfig(pd_urls="http://127.0.0.1:2379")
    assert caplog.records == []
    text = uncommented((SAMPLES / "pump.toml").read_text()).replace("http://127.0.0.1:2379", "https://127.0.0.1:2379")
    assert "\n[storage.kv]\n" in text and "\nwrite-L0-pause-trigger = 24" in text
    security = SecurityConfig("/path/to/ca.pem", "/path/to/drainer.pem", "/path/to/drainer-key.pem", ("binlog",))
    assert load_pump(toml(tmp_path, text), {}) == dataclasses.replace(
        config, stop_write_at_available_space="10 gib", security=security, pd_urls="https://127.0.0.1:2379"
    )


def test_everything_that_the_real_file_only_shows_is_known(tmp_path: Path) -> None:
    text = uncommented((SAMPLES / "drainer.toml").read_text()).replace("http://127.0.0.1:2379", "https://127.0.0.1:2379")
    assert "\ncert-allowed-cn = " in text
    config = load_drainer(toml(tmp_path, text), {})
    assert config.apply.replicate_do_db == ("~^b.*", "s1") and config.apply.ignore_table == (TableName("test", "log"),)
    assert config.apply.replicate_do_table == (TableName("test", "log"), TableName("test", "~^a.*"))


@pytest.mark.shows("keys in any case")
def test_keys_in_any_case(tmp_path: Path) -> None:
    file = toml(tmp_path, '[Syncer]\nIgnore-Schemas = "a"\n[SYNCER.to]\nHOST = "db"\n')
    config = load_drainer(file, {})
    assert (config.apply.ignore_schemas, config.target.host) == (("a",), "db")
    with pytest.raises(ValueError, match="'addr' is set twice, in different case"):
        load_drainer(toml(tmp_path, 'addr = "a:1"\nADDR = "a:2"\n'), {})
    pump = toml(tmp_path, "[storage]\nKV_CHAN_CAP = 9\n[storage.KV]\nCompaction-l0-trigger = 8\n")
    assert load_pump(pump, {}).kv_chan_cap == 9


@pytest.mark.shows("pump gc")
@pytest.mark.parametrize("value", ["7", '"7"'])
def test_gc_is_a_number_or_a_text(tmp_path: Path, value: str) -> None:
    config = load_pump(toml(tmp_path, f"gc = {value}\n"), {})
    assert (config.gc, days_or_duration(config.gc)) == ("7", 7 * 86400)


@pytest.mark.shows("syncer.to.read-timeout")
@pytest.mark.parametrize(("value", "seconds"), [("1m", 60.0), ("1m30s", 90.0), ("100ms", 0.1), ("48h", 172800.0)])
def test_a_read_timeout_as_the_real_drainer_reads_it(tmp_path: Path, value: str, seconds: float) -> None:
    config = load_drainer(toml(tmp_path, f'[syncer.to]\nread-timeout = "{value}"\n'), {})
    assert config.target.read_timeout == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["60", '"60"', "1", "60.0", "true"])
def test_a_read_timeout_without_a_unit_is_refused_for_it_was_seconds_before(tmp_path: Path, value: str) -> None:
    with pytest.raises(
        ValueError, match=r"is not a duration with its unit, such as 90s, 1m or 48h \(a number alone is days in TiDB Binlog"
    ):
        load_drainer(toml(tmp_path, f"[syncer.to]\nread-timeout = {value}\n"), {})
    with pytest.raises(ValueError, match="READ_TIMEOUT: '60' is not a duration with its unit"):
        load_drainer(environ={"TIDB_BINLOG__SYNCER__TO__READ_TIMEOUT": "60"})
    with pytest.raises(ValueError, match="read-timeout must be above 0"):
        load_drainer(environ={}, flags={"syncer.to.read-timeout": "0s"})


@pytest.mark.shows("syncer.ignore-schemas")
@pytest.mark.parametrize(
    ("value", "names"), [('"a,b"', ("a", "b")), ('["a", "b"]', ("a", "b")), ('"a, b"', ("a", " b")), ('""', ()), ("[]", ())]
)
def test_ignored_schemas_are_a_text_or_a_list(tmp_path: Path, value: str, names: tuple[str, ...], caplog: pytest.LogCaptureFixture) -> None:
    assert load_drainer(toml(tmp_path, f"[syncer]\nignore-schemas = {value}\n"), {}).apply.ignore_schemas == names
    assert ("' b' begins or ends with a blank" in caplog.text) == (" b" in names)


@pytest.mark.shows(
    "syncer.to.kafka-version",
    "detect-interval",
    "syncer.to.merge",
    "cache-binlog-count",
    "log-rotate",
    "pump storage.slow_write_threshold",
    "pump storage.kv.block-cache-capacity",
    "pump storage.kv.block-restart-interval",
    "pump storage.kv.block-size",
    "pump storage.kv.compaction-L0-trigger",
    "pump storage.kv.compaction-table-size",
    "pump storage.kv.compaction-total-size",
    "pump storage.kv.compaction-total-size-multiplier",
    "pump storage.kv.write-buffer",
    "pump storage.kv.write-L0-pause-trigger",
    "pump storage.kv.write-L0-slowdown-trigger",
    "pump enable-debug",
    "pump binlog-file-size",
    "pump enable-binlog-slice",
    "pump binlog-slice-size",
    "pump log-rotate",
    "what means nothing here",
    "drainer gotcha 10",
)
def test_what_means_nothing_is_taken_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "[syncer]\ntxn-batch = 100\nworker-count = 32\nenable-detect = false\n"
    text += '[syncer.to]\nmerge = true\ntopic-name = "t"\nkafka-version = "1"\ndir = "d"\n[syncer.relay]\nmax-file-size = 1\n'
    text += '[syncer.to.checkpoint]\nhost = "other"\n'
    load_drainer(toml(tmp_path, text), {}, {"cache-binlog-count": "9", "log-rotate": "hour"})
    said = "\n".join(caplog.messages)
    for words in (
        "without effect here: syncer.to.merge (spark.net-change says whether the changes of a row are combined)",
        "without effect here: syncer.txn-batch (only with spark.net-change = false: spark.atomic-rows bounds",
        "without effect here: syncer.worker-count (only with spark.net-change = false: spark.parts is",
        "without effect here: syncer.enable-detect (",
        'syncer.to.topic-name, syncer.to.kafka-version (only for db-type = "kafka")',
        'syncer.to.dir (only for db-type = "file" or "lake")',
        "syncer.relay.max-file-size (only with syncer.relay.log-dir)",
        "syncer.to.checkpoint.host (only with syncer.to.checkpoint.type)",
        "cache-binlog-count (",
        "log-rotate (",
    ):
        assert words in said
    caplog.clear()
    load_pump(toml(tmp_path, "[storage]\nslow_write_threshold = 2\n[storage.kv]\nwrite-buffer = 1\nblock-size = 1\n"), {})
    assert "without effect here: storage.kv.write-buffer, storage.kv.block-size (the index is RocksDB, not goleveldb)" in caplog.text
    assert len(caplog.records) == 2 and all(record.levelno == logging.WARNING for record in caplog.records)


@pytest.mark.shows("syncer.disable-dispatch", "syncer.disable-detect")
@pytest.mark.parametrize(
    ("in_file", "flags", "kept"),
    [
        ("enable-dispatch = true", {"disable-dispatch": "true"}, True),
        ("disable-dispatch = true", {"enable-dispatch": "true"}, True),
        ("disable-dispatch = false\nenable-dispatch = false", {}, False),
        ("enable-dispatch = false", {"enable-dispatch": "true"}, False),
        ("disable-dispatch = true", {"disable-dispatch": "false"}, False),
    ],
)
def test_the_deprecated_switches_come_first(tmp_path: Path, in_file: str, flags: dict[str, str], kept: bool) -> None:
    file = toml(tmp_path, f"[syncer]\n{in_file}\n")
    given = {f"syncer.{name}": value for name, value in flags.items()}
    assert load_drainer(file, {}, given).apply.enable_dispatch is not kept


def test_sync_mode_0_is_1() -> None:
    assert load_drainer(environ={}, flags={"syncer.to.sync-mode": "0"}).apply.sync_mode == 1


def test_upstream_transactions_are_kept_by_row_operations_unless_told_otherwise(tmp_path: Path) -> None:
    file, said = tmp_path / "drainer.toml", []
    file.write_text("[syncer]\ndisable-dispatch = true\n")
    found = load_drainer(file, {}, {}, said.append)
    assert (found.apply.enable_dispatch, found.apply.net_change) == (False, False)
    assert any(
        "syncer.disable-dispatch: this setting keeps the upstream's transactions, so spark.net-change is false" in line for line in said
    )
    with pytest.raises(ValueError, match="keeps the upstream's transactions, but spark.net-change = true joins them"):
        load_drainer(file, {}, {"spark.net-change": "true"})
    file.write_text('[syncer]\ndb-type = "file"\ndisable-dispatch = true\n')
    assert load_drainer(file, {}, {}).apply.net_change
