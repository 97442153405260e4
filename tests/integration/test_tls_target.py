"""The target over TLS: verified by its CA, its name and its Common Name before the password is sent; with a certificate where it asks for one."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyspark_tidb_binlog.conf.model import ApplyConfig, CheckpointConfig, DrainerConfig, SecurityConfig, TargetConfig, UpstreamConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError, RetryableApplyError
from pyspark_tidb_binlog.sinks.mysql.checkpoint_row import Checkpoint
from pyspark_tidb_binlog.sinks.mysql.elsewhere import RealCheckpoint, real_checkpoint
from pyspark_tidb_binlog.sinks.mysql.session import connect
from pyspark_tidb_binlog.sinks.mysql.upstream_collations import new_collations
from tests.support.certificates import Authority
from tests.support.private_mysql import MYSQLD

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


def secured(target: TargetConfig, ca: str, **more: Any) -> TargetConfig:
    """``target``, verified by ``ca``; ``more``: the rest of the table ``security``."""
    return replace(target, security=SecurityConfig(ca, **more))


def cipher(target: TargetConfig) -> str:
    with connect(target, ApplyConfig()) as session:
        return str(session.query("SHOW STATUS LIKE 'Ssl_cipher'")[0][1])


@pytest.mark.shows("syncer.to.security.ssl-ca")
@pytest.mark.parametrize("more", [{}, {"cert_allowed_cn": ("target",)}, {"cert_allowed_cn": ("x", "test-ca")}])
def test_a_verified_target(target: TargetConfig, ca: Authority, more: dict[str, Any]) -> None:
    assert cipher(secured(target, ca.ca, **more))


@pytest.mark.shows("syncer.to.security.ssl-ca", "syncer.to.security.cert-allowed-cn")
def test_who_is_not_the_target(target: TargetConfig, ca: Authority, place: Path) -> None:
    wrong = {
        "self-signed certificate": secured(target, Authority(place / "other").ca),
        r"127\.0\.0\.1' \(the certificate's Common Names are 'target', 'test-ca', and cert-allowed-cn allows none of them\)": secured(
            target, ca.ca, cert_allowed_cn=("other",)
        ),
        "Hostname mismatch": secured(replace(target, host="localhost"), ca.ca),
    }
    for why, other in wrong.items():
        with pytest.raises(ApplyError, match=why) as refused:
            connect(other, ApplyConfig())
        assert not isinstance(refused.value, RetryableApplyError), "it stays refused"
        assert target.password not in str(refused.value)


@pytest.fixture
def plain(request: pytest.FixtureRequest) -> Iterator[PrivateMariaDB]:
    """A server without TLS; a MySQL has it unless it is told not to."""
    if not MYSQLD:
        yield request.getfixturevalue("mariadb")
        return
    with PrivateMariaDB(options={"tls-version": ""}) as server:
        yield server


def test_a_target_without_tls_is_refused(plain: PrivateMariaDB, ca: Authority) -> None:
    target = secured(replace(plain.target(), socket="", host="127.0.0.1"), ca.ca)
    with pytest.raises(ApplyError, match="SSL is required but the server doesn't support it"):
        connect(target, ApplyConfig())


@pytest.fixture(scope="module")
def shows(target: TargetConfig) -> TargetConfig:
    """An account that must show a certificate."""
    with connect(target, ApplyConfig()) as session:
        session.execute("CREATE USER shows@'%' IDENTIFIED BY 'secret' REQUIRE X509")
        session.execute("GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON *.* TO shows@'%'")
    return replace(target, user="shows", password="secret")


@pytest.fixture(scope="module")
def shown(ca: Authority) -> SecurityConfig:
    """What that account shows."""
    ours = ca.certify("drainer")
    return SecurityConfig(ca.ca, str(ours.cert), str(ours.key), ("target",))


@pytest.mark.shows("syncer.to.security.ssl-cert", "syncer.to.security.ssl-key")
def test_a_user_that_must_show_a_certificate(shows: TargetConfig, shown: SecurityConfig, ca: Authority) -> None:
    with pytest.raises(ApplyError, match="Access denied"):
        connect(secured(shows, ca.ca), ApplyConfig())
    assert cipher(replace(shows, security=shown))


@pytest.mark.shows(
    "syncer.to.checkpoint.security.ssl-ca",
    "syncer.to.checkpoint.security.ssl-cert",
    "syncer.to.checkpoint.security.ssl-key",
    "syncer.to.checkpoint.security.cert-allowed-cn",
)
def test_the_checkpoints_account_has_certificates_of_its_own(target: TargetConfig, shows: TargetConfig, shown: SecurityConfig) -> None:
    def checkpoint(security: SecurityConfig) -> RealCheckpoint:
        asked = CheckpointConfig("mysql", host=shows.host, port=shows.port, user=shows.user, password=shows.password, security=security)
        return real_checkpoint(DrainerConfig(target=target, checkpoint=asked), 1)

    made = checkpoint(shown)
    made.open()
    made.write(Checkpoint(5, True, 0), ())
    assert made.read() == Checkpoint(5, True, 0)
    for why, wrong in refused_security(shown).items():
        with pytest.raises(ApplyError, match=why):
            checkpoint(wrong).open()


@pytest.mark.shows("spark.upstream.security.ssl-cert", "spark.upstream.security.ssl-key", "spark.upstream.security.cert-allowed-cn")
def test_the_upstreams_account_has_certificates_of_its_own(shows: TargetConfig, shown: SecurityConfig) -> None:
    def upstream(security: SecurityConfig) -> UpstreamConfig:
        return UpstreamConfig(host=shows.host, port=shows.port, user=shows.user, password=shows.password, security=security)

    with connect(replace(shows, security=shown), ApplyConfig()) as session:
        session.execute("CREATE TABLE IF NOT EXISTS mysql.tidb (variable_name VARCHAR(64) PRIMARY KEY, variable_value VARCHAR(64))")
        session.execute("REPLACE INTO mysql.tidb VALUES ('new_collation_enabled', 'True')")
        session.execute("COMMIT")
    assert new_collations(upstream(shown)) is True
    for why, wrong in refused_security(shown).items():
        with pytest.raises(ApplyError, match=why):
            new_collations(upstream(wrong))


def refused_security(right: SecurityConfig) -> dict[str, SecurityConfig]:
    """What does not open the account, by the words of the refusal."""
    return {
        "Common Names are 'target'": replace(right, cert_allowed_cn=("other",)),
        "Access denied": replace(right, ssl_cert="", ssl_key=""),
    }
