"""The login of MySQL 8's own accounts: the password goes encrypted with the server's key, which needs the package ``cryptography``.

A MariaDB has no such accounts, so the server's side of the login is played by its document (caching_sha2_pluggable_authentication); a real MySQL,
where there is one, says the same.
"""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from pyspark_tidb_binlog.conf.model import ApplyConfig, TargetConfig
from pyspark_tidb_binlog.jobs.lab.mariadb import PrivateMariaDB
from pyspark_tidb_binlog.schemas.errors import ApplyError, RetryableApplyError
from pyspark_tidb_binlog.sinks.mysql.session import connect
from tests.support.private_mysql import MYSQLD
from tests.support.target_rows import run_sql

PLUGIN = b"caching_sha2_password\0"
SALT = b"abcdefghijklmnopqrst"
CAPABILITIES = (
    0x00000200 | 0x00008000 | 0x00080000 | 0x00000001 | 0x00000008
)  # protocol 4.1, secure connection, plugins, long password, with a database
FULL_LOGIN, GIVE_KEY = b"\x01\x04", b"\x02"


class Server:
    """Takes one login and keeps what password came; then it hangs up."""

    def __init__(self) -> None:
        self.password = b""
        self._key = rsa.generate_private_key(65537, 2048)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        with self._listener, suppress(OSError):
            connection, _ = self._listener.accept()
            with connection, connection.makefile("rwb") as wire:
                self._log_in(wire)

    def _log_in(self, wire) -> None:
        low, high = CAPABILITIES & 0xFFFF, CAPABILITIES >> 16
        greeting = b"\x0a8.0.36\0" + struct.pack("<I", 7) + SALT[:8] + b"\0" + struct.pack("<HBHHB", low, 45, 2, high, 21) + b"\0" * 10
        send(wire, 0, greeting + SALT[8:] + b"\0" + PLUGIN)
        receive(wire)
        send(wire, 2, FULL_LOGIN)
        assert receive(wire) == GIVE_KEY
        public = self._key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        send(wire, 4, b"\x01" + public)
        masked = self._key.decrypt(receive(wire), padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None))
        self.password = bytes(c ^ SALT[i % len(SALT)] for i, c in enumerate(masked)).rstrip(b"\0")
        send(wire, 6, b"\0\0\0\2\0\0\0")


def send(wire, number: int, payload: bytes) -> None:
    wire.write(struct.pack("<I", len(payload))[:3] + bytes((number,)) + payload)
    wire.flush()


def receive(wire) -> bytes:
    head = wire.read(4)
    return wire.read(int.from_bytes(head[:3], "little"))


@pytest.fixture
def server() -> Iterator[Server]:
    yield (playing := Server())
    playing.thread.join(10)


def test_the_password_reaches_the_server(server: Server) -> None:
    target = TargetConfig(host="127.0.0.1", port=server.port, user="u", password="a password ü")
    with pytest.raises(ApplyError, match="Lost connection|gone away"):
        connect(target, ApplyConfig())
    assert server.password.decode() == "a password ü"


@pytest.mark.skipif(not MYSQLD, reason="only a MySQL has such accounts")
@pytest.mark.parametrize("versions", ["TLSv1.2,TLSv1.3", ""], ids=["encrypted", "plain"])
def test_an_account_of_a_real_server(versions: str) -> None:
    with PrivateMariaDB(options={"tls-version": versions}) as server:
        run_sql(server, "CREATE USER drainer@'%' IDENTIFIED WITH caching_sha2_password BY 'a password ü'")
        target = TargetConfig(host="127.0.0.1", port=server.port, user="drainer", password="a password ü")
        for login in ("with the password", "by what the server has kept of it"):
            with connect(target, ApplyConfig()) as session:
                assert session.query("SELECT CURRENT_USER()") == [("drainer@%",)], login
                assert bool(session.query("SHOW STATUS LIKE 'Ssl_cipher'")[0][1]) == bool(versions)
        with pytest.raises(ApplyError, match="1045, Access denied") as refused:
            connect(TargetConfig(host="127.0.0.1", port=server.port, user="drainer", password="another"), ApplyConfig())
        assert not isinstance(refused.value, RetryableApplyError)
