"""``ctl encrypt``: what it prints is what ``encrypted_password`` takes."""

import io

import pytest

from pyspark_tidb_binlog.conf.encrypted import decrypted
from pyspark_tidb_binlog.jobs.ctl import main
from pyspark_tidb_binlog.schemas.errors import ConfigError


@pytest.mark.shows("ctl encrypt")
def test_a_password_is_encrypted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    key = {"BINLOG_SECRET_KEY": "00c0ffee" * 8}
    monkeypatch.setenv("BINLOG_SECRET_KEY", key["BINLOG_SECRET_KEY"])
    assert main(["-cmd", "encrypt", "-text", "s3cret"]) == 0
    said = capsys.readouterr()
    assert decrypted(said.out.strip(), key) == "s3cret" and said.err == ""
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe\n"))
    assert main(["encrypt", "-text", "-"]) == 0
    assert decrypted(capsys.readouterr().out.strip(), key) == "from a pipe"


def test_a_key_that_everybody_knows_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("BINLOG_SECRET_KEY", raising=False)
    assert main(["encrypt", "-text=s3cret"]) == 0
    said = capsys.readouterr()
    assert decrypted(said.out.strip(), {}) == "s3cret" and "anybody can decrypt this" in said.err
    monkeypatch.setenv("BINLOG_SECRET_KEY", "short")
    with pytest.raises(ConfigError, match="BINLOG_SECRET_KEY must be 16, 24 or 32 bytes") as refused:
        main(["encrypt", "-text=s3cret"])
    assert "s3cret" not in str(refused.value)
    with pytest.raises(ConfigError, match="there is no text to encrypt"):
        main(["encrypt"])


@pytest.mark.shows("ctl -V")
def test_the_version_in_binlogctls_form(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["-V"])
    assert ended.value.code == 0 and capsys.readouterr().out.startswith("Release Version: ")
