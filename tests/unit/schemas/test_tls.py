"""``TlsSettings``: which files and names go together, when a context is made again, and whom a name excludes."""

import logging
import os
import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from pyspark_tidb_binlog.conf.model import SecurityConfig
from pyspark_tidb_binlog.schemas.errors import ConfigError, NotUsableYet
from pyspark_tidb_binlog.schemas.tls import TlsSettings
from tests.support.certificates import Authority


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def handshake(client: TlsSettings, server: TlsSettings, name: str = "localhost") -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both sides of a connection in memory."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    asks = client.client("h2").wrap_bio(down, up, server_hostname=name)
    answers = server.server("h2", "http/1.1").wrap_bio(up, down, server_side=True)
    open_sides = [asks, answers]
    for _ in range(10):
        for side in list(open_sides):
            try:
                side.do_handshake()
                open_sides.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert not open_sides
    return asks, answers


def test_without_a_ca_there_is_no_tls() -> None:
    assert TlsSettings.of(SecurityConfig("", "cert", "key", ("", " "))) is None
    assert TlsSettings.of(SecurityConfig("ca", "cert", "key", (" a ", "b"))) == TlsSettings("ca", "cert", "key", ("a", "b"))


@pytest.mark.shows("security.ssl-cert", "security.ssl-key", "pump security.ssl-cert", "pump security.ssl-key")
@pytest.mark.parametrize(("cert", "key"), [("cert", ""), ("", "key")])
def test_a_certificate_needs_its_key(cert: str, key: str) -> None:
    with pytest.raises(ConfigError, match=r"security: ssl-\w+ needs ssl-\w+ as well"):
        TlsSettings("ca", cert, key)


def test_a_server_needs_a_certificate(ca: Authority) -> None:
    TlsSettings(ca.ca).check(listens=False)
    with pytest.raises(ConfigError, match="also needs ssl-cert and ssl-key"):
        TlsSettings(ca.ca).check(listens=True)


def test_what_cannot_be_read_is_named(ca: Authority, tmp_path: Path) -> None:
    good, other = ca.certify("a"), ca.certify("b")
    text = tmp_path / "text"
    text.write_text("my secret is no PEM")
    wrong = {
        "ssl-ca cannot be read from /nowhere": TlsSettings("/nowhere"),
        f"ssl-ca cannot be read from {text}": TlsSettings(str(text)),
        "ssl-key cannot be read from /nowhere": TlsSettings(ca.ca, str(good.cert), "/nowhere"),
        f"ssl-cert and ssl-key cannot be read from {good.cert} with {other.key}": TlsSettings(ca.ca, str(good.cert), str(other.key)),
        f"ssl-cert and ssl-key cannot be read from {good.cert} with {text}": TlsSettings(ca.ca, str(good.cert), str(text)),
    }
    for why, settings in wrong.items():
        with pytest.raises(ConfigError) as refused:
            settings.check(listens=False)
        assert why in str(refused.value) and "secret" not in str(refused.value)
        assert isinstance(refused.value, NotUsableYet) == ("do not fit together" in str(refused.value)) == (str(other.key) in why)


def test_an_encrypted_key_is_refused_without_asking_for_its_passphrase(ca: Authority) -> None:
    made = ca.certify("a")
    form = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"passphrase")
    made.key.write_bytes(made.secret.private_bytes(serialization.Encoding.PEM, *form))
    with pytest.raises(ConfigError, match="without a passphrase"):
        TlsSettings(ca.ca, str(made.cert), str(made.key)).check(listens=False)


def test_a_context_is_made_once_per_use(ca: Authority) -> None:
    one, same = ca.settings(), TlsSettings(ca.ca, str(Path(ca.ca).parent / "node.pem"), str(Path(ca.ca).parent / "node.key"))
    assert one == same and one.client("h2") is same.client("h2") and one.server("h2") is same.server("h2")
    assert len({id(made) for made in (one.client("h2"), one.client(), one.server("h2"), one.server())}) == 4


def test_a_certificate_that_is_replaced_is_used(ca: Authority, caplog: pytest.LogCaptureFixture) -> None:
    settings = ca.settings("node", "before")
    first = settings.server()
    made = ca.certify("new", "after")
    os.replace(made.cert, settings.cert)
    with caplog.at_level(logging.WARNING):
        assert settings.server() is first and settings.server() is first, "the key is still the other one's"
    assert len([record for record in caplog.records if "former certificate" in record.getMessage()]) == 1
    os.replace(made.key, settings.key)
    second = settings.server()
    assert second is not first
    asks, _ = handshake(TlsSettings(ca.ca), settings)
    shown = asks.getpeercert()
    assert shown is not None and (("commonName", "after"),) in shown["subject"]
    os.unlink(settings.key)
    assert settings.server() is second


def test_the_settings_tell_no_secret(ca: Authority) -> None:
    settings = ca.settings()
    assert "PRIVATE" in Path(settings.key).read_text() and "PRIVATE" not in repr(settings)


@pytest.mark.shows("security.cert-allowed-cn", "pump security.cert-allowed-cn")
@pytest.mark.parametrize(
    ("allowed", "refused"),
    [(("node",), False), (("other", "node"), False), (("test-ca",), False), (("nod",), True), (("localhost",), True), ((), False)],
)
def test_a_name_of_any_certificate_of_the_chain_will_do(ca: Authority, allowed: tuple[str, ...], refused: bool) -> None:
    settings, anyone = ca.settings(cn="node", allowed_cn=allowed), ca.settings(cn="node")
    for client, server in ((settings, anyone), (anyone, settings), (settings, settings)):
        if not refused:
            handshake(client, server)
            continue
        with pytest.raises(ssl.SSLError, match="Common Names are 'node', 'test-ca', and cert-allowed-cn allows none"):
            handshake(client, server)


def test_the_chain_is_the_verified_one(tmp_path: Path) -> None:
    """A certificate that a client merely sends along gives it no name."""
    ca, stranger = Authority(tmp_path / "ca"), Authority(tmp_path / "stranger", "boss")
    made = ca.certify("node", "node")
    with made.cert.open("ab") as chain:
        chain.write(Path(stranger.ca).read_bytes())
    settings = TlsSettings(ca.ca, str(made.cert), str(made.key), ("boss",))
    with pytest.raises(ssl.SSLError, match="Common Names are 'node', 'test-ca'"):
        handshake(settings, settings)


def test_an_intermediate_ca_may_be_the_trusted_one(tmp_path: Path) -> None:
    root = Authority(tmp_path / "root", "root")
    middle = Authority(tmp_path / "middle", "middle", signed_by=root)
    settings = middle.settings(allowed_cn=("middle",))
    handshake(settings, settings)


def test_client_certificates_are_asked_for_only_with_names(ca: Authority) -> None:
    server = ca.settings("server")
    _, answers = handshake(ca.settings("client"), server)
    assert answers.getpeercert(binary_form=True) is None


@pytest.mark.shows("security.ssl-ca", "pump security.ssl-ca")
@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"expired": True}, "certificate has expired"),
        ({"names": ("127.0.0.2",)}, "IP address mismatch"),
        ({"names": ()}, "IP address mismatch"),
    ],
)
def test_a_server_is_verified(ca: Authority, more: dict[str, object], why: str) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=why):
        handshake(TlsSettings(ca.ca), ca.settings("server", "127.0.0.1", **more), "127.0.0.1")


def test_another_ca_is_not_trusted(ca: Authority, tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(TlsSettings(Authority(tmp_path / "other").ca), ca.settings())


def test_the_protocol_is_chosen_where_one_is_offered(ca: Authority) -> None:
    for side in handshake(ca.settings(), ca.settings()):
        assert side.selected_alpn_protocol() == "h2"
