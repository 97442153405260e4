"""Settings: what wins, what is refused and in which words; real variables and flags are taken, and our annotated files are current."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from pyspark_tidb_binlog.conf import reference, unset
from pyspark_tidb_binlog.conf.load import flags_of, load_drainer
from pyspark_tidb_binlog.conf.model import (
    ApplyConfig,
    DrainerConfig,
    EventFilterRule,
    FileConfig,
    PumpConfig,
    SourceConfig,
    TableMigrateRule,
    TableName,
    TargetConfig,
)
from pyspark_tidb_binlog.conf.setting import settings_of
from tests.support.settings_file import load_pump, toml

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.shows("spark.checkpoint-dir")
def test_nothing_set_gives_the_real_defaults() -> None:
    config, pump = load_drainer(environ={}), load_pump(environ={})
    assert (config.addr, config.apply.drainer, config.data_dir) == ("127.0.0.1:8249", "here:8249", "data.drainer")
    assert (config.pd_urls, config.source.pumps) == ("http://127.0.0.1:2379", "pd://127.0.0.1:2379")
    assert (config.target.host, config.target.port, config.target.user, config.target.read_timeout) == ("localhost", 3306, "root", 60.0)
    assert (config.checkpoint_dir, config.delta_dir) == ("data.drainer/spark", "data.drainer/delta")
    assert (config.apply.txn_batch, config.apply.worker_count, config.apply.db_type) == (20, 16, "mysql")
    assert load_drainer(environ={}, flags={"log-level": ""}) == config and load_pump(environ={}, flags={"log-level": ""}) == pump
    assert (pump.addr, pump.data_dir, pump.pd_urls, pump.gc) == ("127.0.0.1:8250", "data.pump", "http://127.0.0.1:2379", "7")


HERE = ["", "http://127.0.0.1:2379", "http://localhost:2379,http://[::1]:2379", "http://127.0.0.1:2379/"]
ELSEWHERE = ["http://pd1:2379", "http://127.0.0.1:2379,http://10.0.0.2:2379", "http://[2001:db8::1]:2379", "http://localhost.example:2379"]


@pytest.mark.shows("addr", "pump addr")
@pytest.mark.parametrize(("urls", "host"), [*((urls, "127.0.0.1") for urls in HERE), *((urls, "10.0.0.9") for urls in ELSEWHERE)])
def test_servers_listen_for_others_only_if_the_cluster_is_not_all_on_this_machine(urls: str, host: str) -> None:
    flags = {"pd-urls": urls}
    assert load_drainer(environ={}, flags=flags).addr == f"{host}:8249"
    assert load_pump(environ={}, flags=flags).addr == f"{host}:8250"
    if urls and "," not in urls:
        assert load_drainer(environ={}, flags={"spark.pumps": urls.rstrip("/")}).addr == f"{host}:8249"
        assert load_pump(environ={}, flags={"spark.registry": urls.rstrip("/")}).addr == f"{host}:8250"
    assert load_drainer(environ={}, flags={"spark.pumps": "pump1:8250"}).addr == "127.0.0.1:8249"


def test_a_port_gives_the_name(tmp_path: Path) -> None:
    assert load_drainer(environ={}, flags={"addr": "1.2.3.4:9"}).apply.drainer == "here:9"
    with pytest.raises(ValueError, match="addr 1.2.3.4:0 asks for any free port, so node-id has no default: set node-id"):
        load_drainer(environ={}, flags={"addr": "1.2.3.4:0"})
    assert load_drainer(environ={}, flags={"addr": "1.2.3.4:0", "node-id": "n"}).apply.drainer == "n"
    assert load_drainer(environ={}, flags={"addr": "1.2.3.4:0", "spark.pumps": "p:1"}).apply.drainer == "here:0"


def kept_in(place: Path, text: str) -> Path:
    """A checkpoint directory of Spark's whose remembered settings are ``text``."""
    place.mkdir(parents=True)
    (place / unset.KEPT).write_text(text)
    return place


@pytest.mark.shows("node-id")
@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"version": 2, "node_id": "there:8249"}', "there:8249"),
        ("torn", "here:8249"),
        ("[]", "here:8249"),
    ],
)
def test_a_drainer_keeps_the_name_that_it_has_in_the_registry(tmp_path: Path, text: str, name: str) -> None:
    place = kept_in(tmp_path / "spark", text)
    for given in (str(place), f"file:{place}", f"file://{place}"):
        assert load_drainer(environ={}, flags={"spark.checkpoint-dir": given}).apply.drainer == name
    assert load_drainer(environ={}, flags={"spark.checkpoint-dir": str(place), "node-id": "n"}).apply.drainer == "n"
    kept = load_drainer(environ={}, flags={"spark.checkpoint-dir": str(place), "addr": "1.2.3.4:9"}).apply.drainer
    assert kept == {"here:8249": "here:9"}.get(name, name)


@pytest.mark.parametrize("addr", ["0.0.0.0", "h:x", "h:65536", "::1:8249", "h:-1", "h:"])
def test_an_address_of_another_form_is_refused(addr: str) -> None:
    for load in (load_drainer, load_pump):
        for name in ("addr", "advertise-addr"):
            with pytest.raises(ValueError, match=f"{name}: '{addr}' is not of the form host:port, with a port up to 65535"):
                load(environ={}, flags={name: addr, "node-id": "n"})
        for taken in ("[::1]:8249", "h:65535"):
            assert load(environ={}, flags={"addr": taken, "advertise-addr": ":8249"}).addr == taken


@pytest.mark.parametrize(
    ("load", "path", "value"),
    [
        (load_drainer, "initial-commit-ts", "18446744073709551616"),
        (load_drainer, "initial-commit-ts", "9223372036854775808"),
        (load_drainer, "syncer.ignore-txn-commit-ts", "1,18446744073709551616"),
        (load_drainer, "syncer.to.port", "65536"),
        (load_drainer, "spark.retry-seconds", "nan"),
        (load_drainer, "spark.retry-seconds", "inf"),
        (load_pump, "heartbeat-interval", "-1"),
        (load_pump, "gen-binlog-interval", "-1"),
    ],
)
def test_a_number_out_of_range_is_refused_by_name(load: Callable[..., object], path: str, value: str) -> None:
    with pytest.raises(ValueError, match=path):
        load(environ={}, flags={path: value})


def test_a_heartbeat_of_0_is_the_default_as_in_the_real_pump() -> None:
    assert load_pump(environ={}, flags={"heartbeat-interval": "0"}) == load_pump(environ={})


@pytest.mark.parametrize("value", ["true", "[1]", "{b = true}", "1979-05-27"])
def test_a_session_variable_is_text_or_a_number(tmp_path: Path, value: str) -> None:
    with pytest.raises(ValueError, match="syncer.to.params: .* is not a table of names and values"):
        load_drainer(toml(tmp_path, f"[syncer.to.params]\na = {value}\n"), {})
    assert load_drainer(toml(tmp_path, "[syncer.to.params]\na = 1\n"), {}).target.params == (("a", "1"),)


def test_rules_that_do_nothing_are_said(tmp_path: Path) -> None:
    said: list[str] = []
    text = """
[syncer.binlog-filter-rule.used]
ignore-event = ["delete"]
[syncer.binlog-filter-rule.idle]
ignore-event = ["insert"]
[[syncer.table-migrate-rule]]
binlog-filter-rule = ["used"]
source = {schema = "d"}
target = {schema = "x"}
"""
    load_drainer(toml(tmp_path, text), {}, say=said.append)
    assert said == [
        "syncer.binlog-filter-rule.idle has no effect: no [[syncer.table-migrate-rule]] names it",
        "syncer.table-migrate-rule: a target has an effect only with Oracle. To rename a table, use [[spark.route]]",
    ]


def test_the_annotated_files_and_the_page_are_current() -> None:
    for name, model in reference.FILES.items():
        assert (ROOT / name).read_text() == reference.example(model), "make settings"
    assert (ROOT / reference.PAGE).read_text() == reference.settings_page(), "make settings"


def test_the_annotated_files_say_exactly_the_defaults(caplog: pytest.LogCaptureFixture) -> None:
    assert load_drainer(ROOT / "conf/drainer.toml", environ={}) == load_drainer(environ={})
    assert load_pump(ROOT / "conf/pump.toml", environ={}) == load_pump(environ={})
    assert caplog.records == []


@pytest.mark.parametrize(("model", "file"), [(DrainerConfig, "drainer.toml"), (PumpConfig, "pump.toml")])
def test_the_annotated_files_leave_no_setting_out(model: type, file: str) -> None:
    text = (ROOT / "conf" / file).read_text()
    wanted = [setting for setting in settings_of(model) if setting.fields and setting.in_file]
    assert [s.path for s in wanted if f"\n{s.name} = " not in text and f"\n# {s.name} = " not in text and f"[{s.path}" not in text] == []


@pytest.mark.parametrize("model", [DrainerConfig, PumpConfig])
def test_paths_flags_and_variables_are_unique_and_what_a_setting_needs_is_one(model: type) -> None:
    settings = settings_of(model)
    for names in ([s.path.lower() for s in settings], [s.flag for s in settings if s.flag]):
        assert len(names) == len(set(names))
    assert {setting.needs for setting in settings if setting.needs} <= {setting.path for setting in settings}


@pytest.mark.shows("order of settings")
def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    file = toml(tmp_path, 'log-file = "f"\n[spark]\nparts = 3\natomic-rows = 10\n[syncer.to]\nport = 1\n')
    environ = {"TIDB_BINLOG__SPARK__PARTS": "4", "TIDB_BINLOG__SYNCER__TO__PORT": "2", "PATH": "/bin", "TIDB_BINLOG_DIE": "x:1"}
    config = load_drainer(file, environ, {"syncer.to.port": "3"})
    assert (config.log_file, config.apply.parts, config.apply.atomic_rows, config.target.port) == ("f", 4, 10, 3)


@pytest.mark.shows("BINLOG_SERVER_")
def test_the_real_variables_count_like_the_flags_that_they_are_named_after(tmp_path: Path) -> None:
    file = toml(tmp_path, 'addr = "f:1"\npd-urls = "http://f:1"\n')
    environ = {"BINLOG_SERVER_ADDR": "e:2", "BINLOG_SERVER_PD_URLS": "http://e:2", "BINLOG_SERVER_L": "warn", "BINLOG_SERVER_DATA_DIR": ""}
    config = load_drainer(file, environ | {"BINLOG_SERVER_NOSUCH": "x", "PUMP_ADDR": "p:1"}, {"addr": "g:3"})
    assert (config.addr, config.pd_urls, config.log_level, config.data_dir) == ("g:3", "http://e:2", "warn", "data.drainer")
    assert load_drainer(None, environ | {"TIDB_BINLOG__ADDR": "t:4"}).addr == "t:4"
    pump = load_pump(None, {"PUMP_GC": "8h", "PUMP_FAKE_BINLOG_INTERVAL": "9", "PUMP_PORT": "tcp://10.0.0.1:80"})
    assert (pump.gc, pump.fake_binlog_interval) == ("8h", 9.0)
    with pytest.raises(ValueError, match="environment variable BINLOG_SERVER_C: 'x' is not a whole number"):
        load_drainer(environ={"BINLOG_SERVER_C": "x"})


@pytest.mark.shows("syncer.to.host", "syncer.to.port", "syncer.to.user", "MYSQL_HOST")
def test_the_targets_variables_are_used_where_nothing_else_names_it(tmp_path: Path) -> None:
    environ = {"MYSQL_HOST": "h", "MYSQL_PORT": "33", "MYSQL_USER": "u", "MYSQL_PSWD": "s3cret"}
    assert load_drainer(None, environ).target == TargetConfig("h", 33, "u", "s3cret")
    file = toml(tmp_path, '[syncer.to]\nhost = "f"\nuser = ""\nport = 0\n')
    assert load_drainer(file, environ).target == TargetConfig("f", 33, "u", "s3cret")
    secret = tmp_path / "secret"
    secret.write_text("other")
    assert load_drainer(None, environ | {"TIDB_BINLOG__SPARK__PASSWORD_FILE": str(secret)}).target.password == "other"


def test_false_zero_and_empty_win_over_a_default() -> None:
    environ = {"TIDB_BINLOG__SPARK__FAIL_ON_DATA_LOSS": "false", "TIDB_BINLOG__INITIAL_COMMIT_TS": "0"}
    config = load_drainer(None, environ, {"syncer.ignore-schemas": "", "spark.pumps": "a:1"})
    assert config.source == SourceConfig("a:1", fail_on_data_loss=False, starting_commit_ts=0)
    assert (config.apply.ignore_schemas, config.pd_urls) == ((), "")


@pytest.mark.shows("pd-urls")
def test_one_place_for_the_pumps(tmp_path: Path) -> None:
    assert load_drainer(environ={}, flags={"pd-urls": "http://a:1, http://b:2"}).source.pumps == "pd://a:1,b:2"
    assert load_drainer(environ={}, flags={"pd-urls": "http://127.0.0.1:2379", "spark.pumps": "http://r:1"}).source.pumps == "http://r:1"
    with pytest.raises(ValueError, match="pd-urls and spark.pumps are both set"):
        load_drainer(environ={}, flags={"pd-urls": "http://a:1", "spark.pumps": "b:2"})
    for wrong in ("a:1", "http://a", "http://a:x", "http://a:1/b", "http://a:1,", "http://"):
        for load in (load_drainer, load_pump):
            with pytest.raises(ValueError, match="is not of the form http://host:port"):
                load(environ={}, flags={"pd-urls": wrong})
    assert load_drainer(environ={}, flags={"pd-urls": "http://[::1]:1/, http://b_c.d:2"}).source.pumps == "pd://[::1]:1,b_c.d:2"
    with pytest.raises(ValueError, match="pd-urls: PD takes no user and no password") as refused:
        load_drainer(environ={}, flags={"pd-urls": "http://u:s3cret@a:1"})
    assert "s3cret" not in str(refused.value)
    assert load_pump(environ={}, flags={"spark.registry": "http://r:1"}).pd_urls == ""
    assert load_pump(environ={}, flags={"pd-urls": ""}) == dataclasses.replace(load_pump(environ={}), pd_urls="")
    with pytest.raises(ValueError, match="pd-urls and spark.registry are both set"):
        load_pump(environ={}, flags={"spark.registry": "http://r:1", "pd-urls": "http://a:1"})


@pytest.mark.parametrize("place", ["hdfs://n:8020/d", "s3a://b/d", "file:/var/d", "file:///var/d", "a/b:c/d", "/a#b/ü ?"])
def test_the_delta_tables_may_be_where_delta_rs_writes(place: str) -> None:
    assert load_drainer(environ={}, flags={"spark.delta-dir": place}).delta_dir == place


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("dbfs:/d", "name a local path, or a URI of file, s3,"),
        ("wasbs://c@a/d", "name a local path"),
        ("/a%20b", "has '%'"),
        ("/a[1]", r"has '\['"),
    ],
)
def test_the_delta_tables_may_be_nowhere_else(place: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"spark.delta-dir: .*{why}"):
        load_drainer(environ={}, flags={"spark.delta-dir": place})


def test_lists_and_pairs(tmp_path: Path) -> None:
    file = toml(tmp_path, '[syncer]\nignore-txn-commit-ts = [1, 2]\n[syncer.to.params]\ntx_Isolation = "SERIALIZABLE"\n')
    config = load_drainer(file, {"TIDB_BINLOG__SYNCER__REPLICATE_DO_DB": "a, b"})
    assert config.apply.ignore_txn_commit_ts == (1, 2)
    assert config.apply.replicate_do_db == ("a", "b")
    assert config.target.params == (("tx_Isolation", "SERIALIZABLE"),)
    assert load_drainer(flags={"syncer.to.params": "a=1,b=x=y"}, environ={}).target.params == (("a", "1"), ("b", "x=y"))


RULES = """
[[syncer.ignore-table]]
db-name = "d"
TBL-NAME = "~^t"
[[syncer.table-migrate-rule]]
binlog-filter-rule = ["r1"]
[syncer.table-migrate-rule.source]
schema = "s*"
table = "t"
[syncer.binlog-filter-rule.R1]
ignore-event = ["drop table"]
"""


def test_lists_of_tables(tmp_path: Path) -> None:
    config = load_drainer(toml(tmp_path, RULES), {})
    assert config.apply.ignore_table == (TableName("d", "~^t"),)
    assert config.apply.table_migrate_rule == (TableMigrateRule(("r1",), "s*", "t"),)
    assert config.apply.binlog_filter_rule == (EventFilterRule("R1", ("drop table",)),)
    assert load_drainer(None, {}, flags_of(config)) == config
    given = {"TIDB_BINLOG__SYNCER__IGNORE_TABLE": '[{db-name = "d", tbl-name = "~^t"}]'}
    assert load_drainer(None, given).apply.ignore_table == config.apply.ignore_table


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[syncer.ignore-table]]\ndb-nam = "d"\n', "number 1: unknown setting 'db-nam'; did you mean 'db-name'?"),
        ("[[syncer.ignore-table]]\ndb-name = 1\n", "number 1: db-name: 1 is not a string"),
        ('[[syncer.ignore-table]]\ndb-name = "d"\n', "syncer.ignore-table has an empty db-name or tbl-name"),
        ("syncer.ignore-table = [1]\n", "number 1 is not a TOML table"),
        ('[syncer]\nignore-table = "d.t"\n', "'d.t' is not a list of tables"),
        ('[syncer]\nreplicate-do-db = ["d", ""]\n', "syncer.replicate-do-db has an empty name"),
        ('[syncer]\nignore-schemas = ["d", ""]\n', "syncer.ignore-schemas has an empty name"),
        ('[[syncer.table-migrate-rule]]\nsource = "x"\n', "source is a table: write [source]"),
    ],
)
def test_a_wrong_list_of_tables_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ValueError) as refused:
        load_drainer(toml(tmp_path, text), {})
    assert words in str(refused.value)


def test_a_whole_number_is_a_number(tmp_path: Path) -> None:
    assert load_drainer(toml(tmp_path, "[spark]\nretry-seconds = 65\n"), {}).apply.retry_seconds == 65.0


def test_the_other_kinds_variables_are_no_error() -> None:
    assert load_pump(environ={"TIDB_BINLOG__SPARK__PARTS": "4", "TIDB_BINLOG__NODE_ID": "p"}).node_id == "p"


@pytest.mark.shows("an unknown key")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[spark]\natomic-row = 1\n", ["drainer.toml", "unknown setting 'spark.atomic-row'", "did you mean 'spark.atomic-rows'?"]),
        ("[syncer]\nworker-cuont = 1\n", ["unknown setting 'syncer.worker-cuont'; did you mean 'syncer.worker-count'?"]),
        ("worker-count = 1\n", ["unknown setting 'worker-count'; did you mean 'syncer.worker-count'?"]),
        ('[syncer.two]\nhost = "h"\n', ["unknown setting 'syncer.two'; did you mean 'syncer.to'?"]),
        ("[sorce]\n", ["unknown setting 'sorce'"]),
        # Beside it, commit_ts would be compared as floats.
        (
            "[syncer]\nignore-txn-commit-ts = [7, 9223372036854775808]\n",
            ["syncer.ignore-txn-commit-ts: [9223372036854775808] are not numbers"],
        ),
        ('[syncer.to]\ntime-zone = "+08:00"\n', ["unknown setting 'syncer.to.time-zone'\n"]),
        ("[spark]\natomic_rows = 1\n", ["unknown setting 'spark.atomic_rows'"]),
        ('[spark]\nparts = "2"\n', ["drainer.toml: spark.parts: '2' is not a whole number"]),
        ("[spark]\nparts = true\n", ["True is not a whole number"]),
        ("[spark]\nparts = 0\n", ["spark.parts must be at least 1"]),
        ('[spark]\nlake-json = "text"\n', ["spark.lake-json: 'text' is not string or variant"]),
        ("[spark]\nreload-interval = -1.0\n", ["spark.reload-interval must not be negative"]),
        ('[spark]\nddl-policy = "go"\n', ["spark.ddl-policy: 'go' is not stop, skip or quarantine"]),
        ("[syncer]\nignore-schemas = [1]\n", ["[1] is not a string of names separated by commas, or a list"]),
        ('[syncer]\nignore-schemas = "a,,b"\n', ["syncer.ignore-schemas has an empty name"]),
        ("syncer = 3\n", ["syncer is a table: write [syncer]"]),
        ('metrics-addr = "a:1"\n', ["'metrics-addr' is no key of the file: use the flag -metrics-addr"]),
        ("[source\n", ["drainer.toml is not valid TOML"]),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(ValueError) as refused:
        load_drainer(toml(tmp_path, text), {})
    for word in words:
        assert word in f"{refused.value}\n"


@pytest.mark.parametrize("load", [load_drainer, load_pump])
def test_pd_is_called_over_tls_where_the_cluster_has_it(load: Callable[..., DrainerConfig | PumpConfig]) -> None:
    with pytest.raises(ValueError, match="'https://a:1': https:// needs security.ssl-ca"):
        load(environ={}, flags={"pd-urls": "http://b:1,https://a:1"})
    with pytest.raises(ValueError, match="'http://b:1': with security.ssl-ca, PD is called over TLS: write https://"):
        load(environ={}, flags={"pd-urls": "https://a:1, http://b:1", "security.ssl-ca": "ca.pem"})
    config = load(environ={}, flags={"pd-urls": "https://a:1,https://b:1", "security.ssl-ca": "ca.pem"})
    assert config.pd_urls == "https://a:1,https://b:1"
    assert isinstance(config, PumpConfig) or config.source.pumps == "pd://a:1,b:1"


def test_certificates_without_an_authority_have_no_effect_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    load_drainer(environ={}, flags={"security.ssl-cert": "a.pem", "syncer.to.security.ssl-key": "b.key"})
    assert "without effect here: security.ssl-cert (only with security.ssl-ca)" in caplog.text
    assert "without effect here: syncer.to.security.ssl-key (only with syncer.to.security.ssl-ca)" in caplog.text


def test_the_format_of_the_log() -> None:
    assert load_drainer(environ={}, flags={"spark.log-format": "json"}).log_format == "json"
    with pytest.raises(ValueError, match="spark.log-format: 'xml' is not text or json"):
        load_pump(environ={}, flags={"spark.log-format": "xml"})


@pytest.mark.shows(
    "syncer.to.oracle-service-name",
    "syncer.to.oracle-connect-string",
    "syncer.to.checkpoint.oracle-service-name",
    "syncer.to.checkpoint.oracle-connect-string",
    "Oracle",
)
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("oracle", "Oracle is no target of this program: replicate to MySQL, MariaDB or TiDB"),
        ("redis", "syncer.db-type: 'redis' is not mysql, tidb, file, kafka or lake"),
    ],
)
def test_targets_that_there_are_not(value: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_drainer(environ={}, flags={"syncer.db-type": value})


def test_a_tidb_is_a_target(caplog: pytest.LogCaptureFixture) -> None:
    found = load_drainer(environ={}, flags={"syncer.db-type": "tidb", "syncer.to.checkpoint.type": "tidb", "syncer.to.host": "db"})
    assert (found.apply.db_type, found.target.host, caplog.records) == ("tidb", "db", [])


@pytest.mark.shows("syncer.to.checkpoint.type", "savepoint of files and topics")
@pytest.mark.parametrize("value", ["file", "pb"])
def test_binlog_files_are_a_target(value: str, caplog: pytest.LogCaptureFixture) -> None:
    flags = {"syncer.db-type": value, "syncer.to.dir": "d", "syncer.to.retention-time": "7", "syncer.sync-ddl": "false"}
    config = load_drainer(environ={}, flags=flags | {"syncer.to.checkpoint.type": "file"})
    assert (config.apply.db_type, config.files, config.apply.sync_ddl) == ("file", FileConfig("d", 7), False)
    assert caplog.records == []
    load_drainer(environ={}, flags=flags | {"syncer.to.host": "db", "syncer.worker-count": "4", "spark.net-change": "false"})
    assert "host, syncer.worker-count, spark.net-change (only for a MySQL-protocol server as the target)" in caplog.text
    way = r"the checkpoint is a file.* SELECT checkPoint FROM tidb_binlog\.checkpoint .*\n  consistent = true\n  commitTS = .*\ninto data\.drainer/savepoint"
    with pytest.raises(ValueError, match=f"checkpoint.type = 'mysql': with db-type 'file' {way}"):
        load_drainer(environ={}, flags=flags | {"syncer.to.checkpoint.type": "mysql"})


@pytest.mark.shows("KAFKA_ADDRS")
def test_a_topic_is_a_target(caplog: pytest.LogCaptureFixture) -> None:
    flags = {"syncer.db-type": "kafka", "syncer.to.kafka-addrs": "b:1,c:2", "syncer.to.topic-name": "t", "spark.retry-seconds": "3"}
    found = load_drainer(environ={}, flags=flags | {"syncer.to.checkpoint.type": "file", "syncer.to.dir": "d"})
    assert (found.apply.db_type, found.kafka.addrs, found.kafka.topic, found.apply.retry_seconds) == ("kafka", "b:1,c:2", "t", 3.0)
    assert [record.getMessage() for record in caplog.records] == [
        'without effect here: syncer.to.dir (only for db-type = "file" or "lake")'
    ]
    load_drainer(environ={}, flags=flags | {"syncer.to.kafka-version": "2.0.0"})
    assert "syncer.to.kafka-version (this program asks the brokers" in caplog.text


def test_a_lake_is_a_target(caplog: pytest.LogCaptureFixture) -> None:
    flags = {"syncer.db-type": "lake", "syncer.to.dir": "s3://bucket/lake", "spark.lease-timeout": "3", "syncer.to.retention-time": "30"}
    found = load_drainer(environ={}, flags=flags)
    assert (found.apply.db_type, found.files.dir, found.apply.lease_timeout) == ("lake", "s3://bucket/lake", 3.0)
    assert (found.files.retention_time, caplog.records) == (30, [])
    load_drainer(environ={}, flags=flags | {"spark.retry-seconds": "9"})
    # Not caplog.text, in which a formatter that another test has left may escape quotation marks.
    said = "\n".join(caplog.messages)
    assert "spark.retry-seconds (only for a MySQL-protocol server as the target)" in said


def test_settings_of_row_operations(caplog: pytest.LogCaptureFixture) -> None:
    flags = {"syncer.txn-batch": "7", "syncer.worker-count": "4", "spark.txn-batch-time": "500ms"}
    said = "only with spark.net-change = false: "
    assert load_drainer(environ={}, flags=flags).apply.txn_batch == 7
    assert (
        f"without effect here: syncer.txn-batch, spark.txn-batch-time ({said}spark.atomic-rows bounds a transaction of net changes"
        in caplog.text
    )
    assert f"syncer.worker-count ({said}spark.parts is the number of connections for net changes" in caplog.text
    caplog.clear()
    flags |= {"spark.net-change": "false", "syncer.safe-mode": "true", "syncer.enable-dispatch": "false", "syncer.enable-detect": "false"}
    found = load_drainer(environ={}, flags=flags).apply
    assert (found.net_change, found.safe_mode, found.enable_dispatch, found.txn_batch_time) == (False, True, False, 0.5)
    assert caplog.records == []
    assert load_drainer(environ={}, flags={"syncer.safe-mode": "true"}).apply.safe_mode
    for wrong in ({"syncer.txn-batch": "0"}, {"syncer.worker-count": "0"}, {"syncer.worker-count": "1025"}):
        with pytest.raises(ValueError, match="must be"):
            load_drainer(environ={}, flags=wrong)


@pytest.mark.shows("syncer.to.zookeeper-addrs", "ZooKeeper")
def test_zookeeper_is_out_with_its_alternative() -> None:
    with pytest.raises(ValueError, match="this program does not ask ZooKeeper: name the brokers in syncer.to.kafka-addrs"):
        load_drainer(environ={}, flags={"syncer.db-type": "kafka", "syncer.to.zookeeper-addrs": "z:1"})
    assert load_drainer(environ={"KAFKA_ADDRS": "k:1"}, flags={"syncer.db-type": "kafka"}).kafka.addrs == "k:1"


def test_partial_columns_and_ddls_of_ones_own_are_accepted(caplog: pytest.LogCaptureFixture) -> None:
    config = load_drainer(environ={}, flags={"syncer.to.sync-mode": "2", "syncer.sync-ddl": "false"})
    assert (config.apply.sync_mode, config.apply.sync_ddl, caplog.records) == (2, False, [])
    with pytest.raises(ValueError, match="sync-mode: 3 is not 1 or 2"):
        load_drainer(environ={}, flags={"syncer.to.sync-mode": "3"})


@pytest.mark.parametrize(
    "config", [DrainerConfig(), DrainerConfig(apply=ApplyConfig(parts=3, ignore_schemas=())), PumpConfig("p", sync_log=False)]
)
def test_flags_bring_a_configuration_back(config: DrainerConfig | PumpConfig) -> None:
    load = load_drainer if isinstance(config, DrainerConfig) else load_pump
    assert load(None, {}, flags_of(config)) == config


def test_a_wrong_variable_or_flag_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="environment variable TIDB_BINLOG__SPARK__PART: unknown setting 'spark.part'"):
        load_drainer(environ={"TIDB_BINLOG__SPARK__PART": "1"})
    with pytest.raises(ValueError, match="TIDB_BINLOG__SPARK__FAIL_ON_DATA_LOSS: 'maybe' is not true or false"):
        load_drainer(environ={"TIDB_BINLOG__SPARK__FAIL_ON_DATA_LOSS": "maybe"})
    with pytest.raises(ValueError, match="flag --spark.parts: 'two' is not a whole number"):
        load_drainer(environ={}, flags={"spark.parts": "two"})


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read the settings file .*absent.toml: No such file"):
        load_drainer(tmp_path / "absent.toml", {})


@pytest.mark.parametrize("origin", ["file", "flag", "variable"])
def test_a_value_out_of_range_is_named_with_its_origin(origin: str, tmp_path: Path) -> None:
    file = tmp_path / "drainer.toml"
    file.write_text("[syncer.to]\nport = 70000\n" if origin == "file" else "")
    flags = {"syncer.to.port": "70000"} if origin == "flag" else {}
    environ = {"TIDB_BINLOG__SYNCER__TO__PORT": "70000"} if origin == "variable" else {}
    where = {
        "file": rf"^{file}: syncer\.to\.port",
        "flag": r"^flag --syncer\.to\.port",
        "variable": r"^environment variable TIDB_BINLOG__SYNCER__TO__PORT: syncer\.to\.port",
    }
    with pytest.raises(ValueError, match=where[origin] + ": 70000 is not a port, 1 to 65535$"):
        load_drainer(file, environ, flags)


@pytest.mark.parametrize(
    ("path", "addresses"),
    [
        ("spark.pumps", "127.0.0.1:8250,127.0.0.1:70000"),
        ("spark.pumps", "http://127.0.0.1:70000"),
        ("pd-urls", "http://127.0.0.1:2379,http://127.0.0.1:70000"),
        ("spark.tidb-status", "http://127.0.0.1:70000/"),
    ],
)
def test_an_address_has_no_port_beyond_the_last(path: str, addresses: str) -> None:
    """To gRPC, 70000 is 4464."""
    with pytest.raises(ValueError, match=f"{path}: 70000 is not a port"):
        load_drainer(environ={}, flags={path: addresses})
