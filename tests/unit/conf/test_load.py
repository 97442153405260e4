"""Settings: what wins, what is refused and in which words, and that the annotated files repeat the model's defaults."""

from pathlib import Path

import pytest

from pyspark_tidb_binlog.conf.load import load_drainer, load_pump, settings_of
from pyspark_tidb_binlog.conf.model import ApplyConfig, DrainerConfig, PumpConfig, SourceConfig, TargetConfig
from pyspark_tidb_binlog.conf.units import pause_of

CONF = Path(__file__).parents[3] / "conf"


def toml(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "drainer.toml"
    file.write_text(text)
    return file


def test_no_source_at_all_gives_the_defaults() -> None:
    assert load_drainer(environ={}) == DrainerConfig()
    assert load_pump(environ={}) == PumpConfig()


def test_the_annotated_files_say_exactly_the_defaults() -> None:
    assert load_drainer(CONF / "drainer.toml", environ={}) == DrainerConfig()
    assert load_pump(CONF / "pump.toml", environ={}) == PumpConfig()


@pytest.mark.parametrize(("model", "file"), [(DrainerConfig, "drainer.toml"), (PumpConfig, "pump.toml")])
def test_the_annotated_files_leave_no_setting_out(model: type, file: str) -> None:
    text = (CONF / file).read_text()
    missing = [s.path for s in settings_of(model) if f"\n{s.name} = " not in text and f"[{s.path}]" not in text]
    assert missing == []


def test_every_path_is_unique() -> None:
    paths = [s.path for s in settings_of(DrainerConfig)]
    assert len(paths) == len(set(paths))


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    file = toml(tmp_path, 'ddl-history = "f"\n[syncer]\nparts = 3\natomic-rows = 10\n[syncer.to]\nport = 1\n')
    environ = {"TIDB_BINLOG__SYNCER__PARTS": "4", "TIDB_BINLOG__SYNCER__TO__PORT": "2", "PATH": "/bin", "TIDB_BINLOG_DIE": "x:1"}
    config = load_drainer(file, environ, {"syncer.to.port": "3"})
    assert config == DrainerConfig(ddl_history="f", apply=ApplyConfig(parts=4, atomic_rows=10), target=TargetConfig(port=3))


def test_false_zero_and_empty_win_over_a_default() -> None:
    environ = {"TIDB_BINLOG__SOURCE__FAIL_ON_DATA_LOSS": "false", "TIDB_BINLOG__SOURCE__STARTING_COMMIT_TS": "0"}
    config = load_drainer(None, environ, {"syncer.ignore-schemas": ""})
    assert config.source == SourceConfig(fail_on_data_loss=False, starting_commit_ts=0)
    assert config.apply.ignore_schemas == ()


def test_lists_and_pairs(tmp_path: Path) -> None:
    file = toml(tmp_path, '[syncer]\nignore-txn-commit-ts = [1, 2]\n[syncer.to.params]\ntx_isolation = "SERIALIZABLE"\n')
    config = load_drainer(file, {"TIDB_BINLOG__SYNCER__REPLICATE_DO_DB": "a, b"})
    assert config.apply.ignore_txn_commit_ts == (1, 2)
    assert config.apply.replicate_do_db == ("a", "b")
    assert config.target.params == (("tx_isolation", "SERIALIZABLE"),)
    assert load_drainer(flags={"syncer.to.params": "a=1,b=x=y"}, environ={}).target.params == (("a", "1"), ("b", "x=y"))


def test_a_whole_number_is_a_number(tmp_path: Path) -> None:
    assert load_drainer(toml(tmp_path, "[pair]\norphan-timeout = 5\n"), {}).pair.orphan_timeout == 5.0


def test_the_other_kinds_variables_are_no_error() -> None:
    assert load_pump(environ={"TIDB_BINLOG__SYNCER__PARTS": "4", "TIDB_BINLOG__NODE_ID": "p"}).node_id == "p"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[syncer]\natomic-row = 1\n", ["drainer.toml", "unknown setting 'syncer.atomic-row'", "did you mean 'syncer.atomic-rows'?"]),
        ("[sorce]\n", ["unknown setting 'sorce'"]),
        ("[syncer]\natomic_rows = 1\n", ["unknown setting 'syncer.atomic_rows'"]),
        ('[syncer]\nparts = "2"\n', ["drainer.toml: syncer.parts: '2' is not a whole number"]),
        ("[syncer]\nparts = true\n", ["True is not a whole number"]),
        ("[syncer]\nparts = 0\n", ["syncer.parts must be at least 1"]),
        # Beside it, commit_ts would be compared as floats.
        (
            "[syncer]\nignore-txn-commit-ts = [7, 9223372036854775808]\n",
            ["syncer.ignore-txn-commit-ts: [9223372036854775808] are not numbers"],
        ),
        ('[syncer]\nddl-policy = "go"\n', ["syncer.ddl-policy: 'go' is not stop, skip or quarantine"]),
        ("[syncer]\nignore-schemas = [1]\n", ["[1] is not a list of strings"]),
        ("[source\n", ["drainer.toml is not valid TOML"]),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(ValueError) as refused:
        load_drainer(toml(tmp_path, text), {})
    for word in words:
        assert word in str(refused.value)


def test_a_wrong_variable_or_flag_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="environment variable TIDB_BINLOG__SYNCER__PART: unknown setting 'syncer.part'"):
        load_drainer(environ={"TIDB_BINLOG__SYNCER__PART": "1"})
    with pytest.raises(ValueError, match="TIDB_BINLOG__SOURCE__FAIL_ON_DATA_LOSS: 'maybe' is not true or false"):
        load_drainer(environ={"TIDB_BINLOG__SOURCE__FAIL_ON_DATA_LOSS": "maybe"})
    with pytest.raises(ValueError, match="flag --syncer.parts: 'two' is not a whole number"):
        load_drainer(environ={}, flags={"syncer.parts": "two"})


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read the settings file .*absent.toml: No such file"):
        load_drainer(tmp_path / "absent.toml", {})


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_password_from_a_file(tmp_path: Path, end: str) -> None:
    file = tmp_path / "password"
    file.write_bytes(f" s3cret \n x{end}".encode())
    config = load_drainer(environ={"TIDB_BINLOG__SYNCER__TO__PASSWORD_FILE": str(file)})
    assert config.target.password == " s3cret \n x"
    assert "s3cret" not in repr(config)


def test_a_password_that_cannot_be_had_is_refused_and_not_shown(tmp_path: Path) -> None:
    empty, odd, toml = tmp_path / "empty", tmp_path / "odd", tmp_path / "d.toml"
    empty.write_text("\n")
    odd.write_bytes(b"s3cret\xff")
    toml.write_text("[syncer.to]\npassword = 53237\n")
    for flags, file, words in (
        ({"syncer.to.password-file": str(tmp_path / "none")}, None, "cannot read syncer.to.password-file .*none: No such file"),
        ({"syncer.to.password-file": str(empty)}, None, "empty is empty"),
        ({"syncer.to.password-file": str(odd)}, None, "odd: it is not UTF-8"),
        ({"syncer.to.password-file": str(odd), "syncer.to.password": "s3cret"}, None, "are both set"),
        ({}, toml, "syncer.to.password: the value is not a string"),
    ):
        with pytest.raises(ValueError, match=words) as refused:
            load_drainer(file, {}, flags)
        assert "s3cret" not in str(refused.value) and "53237" not in str(refused.value)
        assert refused.value.__cause__ is None or "s3cret" not in repr(refused.value.__cause__)


@pytest.mark.parametrize(("text", "seconds"), [("200ms", 0.2), (" 1.5s ", 1.5), ("0", 0.0), ("0s", 0.0), ("1ms", 0.001)])
def test_a_pause(text: str, seconds: float) -> None:
    assert pause_of(text) == pytest.approx(seconds)
    assert SourceConfig(wake_idle_pumps=text).wake_interval == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "200", "-1s", "1m", "ms", "1e3ms", "1 s"])
def test_what_is_no_pause_is_refused_with_the_setting(text: str) -> None:
    with pytest.raises(ValueError, match="source.wake-idle-pumps: .* is not a pause: write 200ms, 1.5s, or 0"):
        SourceConfig(wake_idle_pumps=text)
