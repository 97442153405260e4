"""The target over TLS: verified by its CA, its name and its Common Name before the password is sent; with a certificate where it asks for one."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.mysql.session import connect
from tests.support.certificates import Authority

pytestmark = pytest.mark.mysql


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)  # the server may run as another user
        yield Path(made)


@pytest.fixture(scope="module")
def ca(place: Path) -> Authority:
    return Authority(place / "ca")


@pytest.fixture(scope="module")
def target(ca: Authority) -> Iterator[TargetConfig]:
    made = ca.certify("target", "target", names=("127.0.0.1",))
    made.key.chmod(0o644)
    options = {"ssl-ca": ca.ca, "ssl-cert": str(made.cert), "ssl-key": str(made.key)}
    with PrivateMariaDB(options=options) as server:
        yield replace(server.target(), socket="", host="127.0.0.1")


def cipher(target: TargetConfig) -> str:
    with connect(target, ApplyConfig()) as session:
        return str(session.query("SHOW STATUS LIKE 'Ssl_cipher'")[0][1])


@pytest.mark.parametrize("more", [{}, {"cert_allowed_cn": ("target",)}, {"cert_allowed_cn": ("x", "test-ca")}])
def test_a_verified_target(target: TargetConfig, ca: Authority, more: dict[str, Any]) -> None:
    assert cipher(replace(target, ssl_ca=ca.ca, **more))


def test_who_is_not_the_target(target: TargetConfig, ca: Authority, place: Path) -> None:
    wrong = {
        "self-signed certificate": {"ssl_ca": Authority(place / "other").ca},
        "Common Names are 'target', 'test-ca'": {"ssl_ca": ca.ca, "cert_allowed_cn": ("other",)},
        "Hostname mismatch": {"ssl_ca": ca.ca, "host": "localhost"},
    }
    for why, more in wrong.items():
        with pytest.raises(ApplyError, match=why) as refused:
            connect(replace(target, **more), ApplyConfig())  # type: ignore[arg-type]
        assert target.password not in str(refused.value)


def test_a_target_without_tls_is_refused(mariadb: PrivateMariaDB, ca: Authority) -> None:
    plain = replace(mariadb.target(), socket="", host="127.0.0.1", ssl_ca=ca.ca)
    with pytest.raises(ApplyError, match="SSL is required but the server doesn't support it"):
        connect(plain, ApplyConfig())


def test_a_user_that_must_show_a_certificate(target: TargetConfig, ca: Authority) -> None:
    with connect(target, ApplyConfig()) as session:
        session.execute("CREATE USER shows@'%' IDENTIFIED BY 'secret' REQUIRE X509")
    shows = replace(target, user="shows", password="secret", ssl_ca=ca.ca)
    with pytest.raises(ApplyError, match="Access denied"):
        connect(shows, ApplyConfig())
    ours = ca.certify("drainer")
    assert cipher(replace(shows, ssl_cert=str(ours.cert), ssl_key=str(ours.key)))
