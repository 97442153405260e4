"""Accounts of the target, the checkpoint and the upstream: where their passwords come from, and that no error shows them."""

from pathlib import Path

import pytest

from pyspark_tidb_binlog.conf.encrypted import encrypted
from pyspark_tidb_binlog.conf.load import flags_of, load_drainer
from pyspark_tidb_binlog.conf.model import UpstreamConfig
from tests.support.settings_file import load_pump, toml

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_the_checkpoint_may_repeat_what_the_target_has() -> None:
    for load in (load_drainer, load_pump):
        with pytest.raises(ValueError, match="cert-allowed-cn needs ssl-ca: without it there is no TLS"):
            load(environ={}, flags={"security.cert-allowed-cn": "tidb"})
        assert load(environ={}, flags={"security.cert-allowed-cn": ""})
    both = {f"{table}.ssl-ca": "ca.pem" for table in ("syncer.to.security", "syncer.to.checkpoint.security")}
    assert load_drainer(environ={}, flags=both | {"syncer.to.checkpoint.type": "mysql"}).checkpoint.security.ssl_ca == "ca.pem"
    other = both | {"syncer.to.checkpoint.type": "mysql", "syncer.to.checkpoint.security.ssl-ca": "other.pem"}
    assert load_drainer(environ={}, flags=other).checkpoint.security.ssl_ca == "other.pem"


@pytest.mark.shows("syncer.to.checkpoint.encrypted_password")
def test_the_checkpoints_own_password_is_decrypted() -> None:
    """The real one decrypts the target's for both (drainer.md, gotchas)."""
    key = {"BINLOG_SECRET_KEY": "00c0ffee" * 8}
    flags: dict[str, object] = {
        "syncer.to.encrypted_password": encrypted("targets", key),
        "syncer.to.checkpoint.type": "mysql",
        "syncer.to.checkpoint.host": "elsewhere",
        "syncer.to.checkpoint.encrypted_password": encrypted("its own", key),
    }
    config = load_drainer(environ=key, flags=flags)
    assert (config.target.password, config.checkpoint.password) == ("targets", "its own")
    with pytest.raises(ValueError, match=r"syncer\.to\.checkpoint\.encrypted_password: the value is not"):
        load_drainer(environ=key, flags=flags | {"syncer.to.checkpoint.encrypted_password": "hard-to-guess!"})


@pytest.mark.shows("syncer.to.encrypted_password")
def test_an_encrypted_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = {"BINLOG_SECRET_KEY": "00c0ffee" * 8}
    flags: dict[str, object] = {"syncer.to.encrypted_password": encrypted("s3cret", key), "syncer.to.password": "other"}
    config = load_drainer(environ=key, flags=flags)
    assert config.target.password == "s3cret", "it wins, as in the real Drainer"
    assert load_drainer(environ=key | {"MYSQL_PSWD": "other"}, flags=flags).target.password == "s3cret"
    assert "s3cret" not in repr(config) and str(flags["syncer.to.encrypted_password"]) not in repr(config)
    assert load_drainer(environ=key, flags=flags_of(config)) == config
    assert caplog.text == ""
    load_drainer(environ={}, flags={"syncer.to.encrypted_password": encrypted("s3cret", {})})
    assert "anybody can decrypt this password, because BINLOG_SECRET_KEY is not set" in caplog.text and "s3cret" not in caplog.text
    for text in ("hard-to-guess!", "aGFyZC10by1ndWVzcw=="):
        with pytest.raises(ValueError, match=r"syncer\.to\.encrypted_password: the value is not") as refused:
            load_drainer(environ=key, flags={"syncer.to.encrypted_password": text})
        assert text not in str(refused.value)
    with pytest.raises(ValueError, match="encrypted_password and spark.password-file are both set"):
        load_drainer(environ=key, flags=flags | {"spark.password-file": str(tmp_path)})


@pytest.mark.shows("spark.upstream.encrypted_password", "spark.upstream.security.ssl-ca")
def test_the_upstreams_account() -> None:
    key = {"BINLOG_SECRET_KEY": "00c0ffee" * 8}
    flags: dict[str, object] = {"spark.upstream.host": "db", "spark.upstream.encrypted_password": encrypted("s3cret", key)}
    config = load_drainer(environ=key, flags=flags | {"spark.upstream.security.ssl-ca": "ca.pem"})
    assert (config.upstream.host, config.upstream.port, config.upstream.password) == ("db", 4000, "s3cret")
    assert config.upstream.security.ssl_ca == "ca.pem" and "s3cret" not in repr(config)
    with pytest.raises(ValueError, match=r"spark\.upstream\.encrypted_password: the value is not"):
        load_drainer(environ=key, flags=flags | {"spark.upstream.encrypted_password": "hard-to-guess!"})
    with pytest.raises(ValueError, match=r"spark\.upstream\.port: 0 is not a port"):
        UpstreamConfig(port=0)


def test_a_checkpoint_on_the_target_itself_is_taken(tmp_path: Path) -> None:
    target = '[syncer.to]\nhost = "db"\nport = 33\nuser = "u"\npassword = "s3cret"\n'
    same = '[syncer.to.checkpoint]\ntype = "mysql"\nhost = "db"\nport = 33\nuser = "u"\npassword = "s3cret"\nschema = "s"\n'
    assert load_drainer(toml(tmp_path, target + same), {}).apply.checkpoint_schema == "s"
    elsewhere = load_drainer(toml(tmp_path, target + same.replace('"db"', '"other"').replace("s3cret", "t0psecret")), {})
    assert (elsewhere.checkpoint.host, elsewhere.checkpoint.password) == ("other", "t0psecret") and "t0psecret" not in repr(elsewhere)
    own = {"BINLOG_SECRET_KEY": "00c0ffee" * 8}
    flags: dict[str, object] = {"syncer.to.checkpoint.type": "mysql", "syncer.to.checkpoint.encrypted_password": encrypted("hush", own)}
    assert load_drainer(environ=own, flags=flags).checkpoint.password == "hush", "its own, not the target's as in the real Drainer"
    with pytest.raises(ValueError, match=r"syncer\.to\.checkpoint\.encrypted_password: the value is not"):
        load_drainer(environ=own, flags=flags | {"syncer.to.checkpoint.encrypted_password": "x"})


@pytest.mark.shows("spark.password-file")
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_password_from_a_file(tmp_path: Path, end: str) -> None:
    file = tmp_path / "password"
    file.write_bytes(f" s3cret \n x{end}".encode())
    config = load_drainer(environ={"TIDB_BINLOG__SPARK__PASSWORD_FILE": str(file)})
    assert config.target.password == " s3cret \n x"
    assert "s3cret" not in repr(config)


@pytest.mark.shows("spark.password-file")
def test_a_password_that_cannot_be_had_is_refused_and_not_shown(tmp_path: Path) -> None:
    empty, odd, toml = tmp_path / "empty", tmp_path / "odd", tmp_path / "d.toml"
    empty.write_text("\n")
    odd.write_bytes(b"s3cret\xff")
    toml.write_text("[syncer.to]\npassword = 53237\n")
    for flags, file, words in (
        ({"spark.password-file": str(tmp_path / "none")}, None, "cannot read spark.password-file .*none: No such file"),
        ({"spark.password-file": str(empty)}, None, "empty is empty"),
        ({"spark.password-file": str(odd)}, None, "odd: the file is not UTF-8"),
        ({"spark.password-file": str(odd), "syncer.to.password": "s3cret"}, None, "are both set"),
        ({}, toml, "syncer.to.password: the value is not a string"),
    ):
        with pytest.raises(ValueError, match=words) as refused:
            load_drainer(file, {}, flags)
        assert "s3cret" not in str(refused.value) and "53237" not in str(refused.value)
        assert refused.value.__cause__ is None or "s3cret" not in repr(refused.value.__cause__)
