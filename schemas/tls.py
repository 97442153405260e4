"""TLS as in the real cluster (wire.md 7): one CA, one certificate with its key for both directions, and the names that a peer must have.

    ca           signs the peer's certificate. A client also checks the name that it connects to, by the certificate's SAN
    cert, key    what we show: always as a server, and as a client when the server asks
    allowed_cn   a server asks for client certificates only with this setting. A peer of either direction is then refused unless a
                 certificate of its verified chain (its own or a CA's) has one of these Subject CNs

Promises:

* The settings are paths and names, nothing secret. They may be pickled, logged and sent to executors, which must have the files.
* A context is made once per use, and again when one of its files has changed: a certificate may be replaced while the process runs. While
  only one of certificate and key is replaced, the former context stays in use.
* A peer's name is checked as the last part of the handshake: a refused peer gets nothing, and nothing is read from it.
* A ``ConfigError`` names the file that cannot be used, never its content. ``NotUsableYet``: certificate and key do not fit together.
"""

import functools
import logging
import os
import re
import ssl
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark_tidb_binlog.conf.model import SecurityConfig
from pyspark_tidb_binlog.schemas.errors import ConfigError, NotUsableYet

H2, HTTP1 = "h2", "http/1.1"
"""Names of protocols in ALPN."""
_UNFIT = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH")
"""OpenSSL's words for a key that is not the certificate's."""
_REFUSED = re.compile(r"certificate is refused|CERTIFICATE_VERIFY_FAILED|ALERT_\w*CERTIFICATE|ALERT_UNKNOWN_CA|cert-allowed-cn allows none")
"""Words of our client, of Python and of a peer's alert."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The settings ``ssl-ca``, ``ssl-cert``, ``ssl-key`` and ``cert-allowed-cn`` of one ``security`` table."""

    ca: str
    """File with the CA's certificates, PEM."""
    cert: str = ""
    """File with our certificate and what leads from it to the CA, PEM; empty = none."""
    key: str = ""
    """File with its key, PEM, not encrypted."""
    allowed_cn: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """``ConfigError`` for settings that do not go together."""
        if bool(self.cert) != bool(self.key):
            raise ConfigError(f"security: {'ssl-cert' if self.cert else 'ssl-key'} needs {'ssl-key' if self.cert else 'ssl-cert'} as well")

    @classmethod
    def of(cls, table: SecurityConfig) -> "TlsSettings | None":
        """The settings of a table; None: without ``ssl-ca`` there is no TLS, as in the real programs."""
        if not table.ssl_ca:
            return None
        return cls(table.ssl_ca, table.ssl_cert, table.ssl_key, tuple(name.strip() for name in table.cert_allowed_cn))

    def check(self, *, listens: bool) -> None:
        """Load the files once, to fail at the start. ``listens``: they are also for a server.

        Raises:
            ConfigError: a file is missing, is no PEM, does not match, or a server has no certificate.
        """
        self.client()
        if listens:
            self.server()

    def client(self, *protocols: str) -> ssl.SSLContext:
        """For connections to servers, offering ``protocols`` in ALPN; a server need not select any."""
        return _known.context(self, False, protocols)

    def server(self, *protocols: str) -> ssl.SSLContext:
        """For connections from clients; ``protocols`` are selected for a client that offers one of them, others are served as well."""
        if not self.cert:
            raise ConfigError("security: a server with ssl-ca also needs ssl-cert and ssl-key: set both")
        return _known.context(self, True, protocols)


def is_refused(text: str) -> bool:
    """Whether the text of an error says that one side has refused the other's certificate: no retry changes that. Pure."""
    return _REFUSED.search(text) is not None


class _Contexts:
    """The contexts of this process, each with the state that its files had."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[tuple[TlsSettings, bool, Sequence[str]], tuple[object, ssl.SSLContext]] = {}

    def context(self, settings: TlsSettings, server: bool, protocols: Sequence[str]) -> ssl.SSLContext:
        use = (settings, server, protocols)
        with self._lock:
            known = self._made.get(use)
            state = _state_of((settings.ca, settings.cert, settings.key))
            if known is not None and known[0] == state:
                return known[1]
            try:
                made = _context(settings, server, protocols)
            except ConfigError as error:
                if known is None:
                    raise
                _log.warning("the new TLS files are not used, and TLS continues with the former certificate: %s", error)
                made = known[1]
            self._made[use] = state, made
            return made


_known = _Contexts()


def _state_of(paths: Iterable[str]) -> object:
    return tuple(_file_state(path) for path in paths if path)


def _file_state(path: str) -> object:
    try:
        found = os.stat(path)
    except OSError as error:
        return error.errno
    return found.st_ino, found.st_size, found.st_mtime_ns


def _context(settings: TlsSettings, server: bool, protocols: Sequence[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    # as in Go: whatever the file holds is trusted, also a CA that another one has signed
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if server:
        context.verify_mode = ssl.CERT_REQUIRED if settings.allowed_cn else ssl.CERT_NONE
        # a resumed session shows no chain, whose names are to be checked
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    else:
        context.hostname_checks_common_name = False
    if settings.allowed_cn:
        context.sslsocket_class, context.sslobject_class = _checking(frozenset(settings.allowed_cn))
    _load(settings.ca, "ssl-ca", lambda: context.load_verify_locations(settings.ca))
    if settings.cert:
        for path, name in ((settings.cert, "ssl-cert"), (settings.key, "ssl-key")):
            _load(path, name, functools.partial(_touch, path))
        load = functools.partial(context.load_cert_chain, settings.cert, settings.key, _no_passphrase)
        _load(f"{settings.cert} with {settings.key}", "ssl-cert and ssl-key", load)
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


def _touch(path: str) -> None:
    with open(path, "rb"):
        pass


def _no_passphrase() -> str:
    # without this OpenSSL would ask on the terminal
    raise ConfigError("security: ssl-key has a passphrase: name a file with a key without a passphrase, which only this user can read")


def _load(path: str, name: str, load: Any) -> None:
    try:
        load()
    except OSError as error:  # ssl.SSLError is one
        why = error.strerror if not isinstance(error, ssl.SSLError) else error.reason or "no PEM"
        text = f"security: {name} cannot be read from {path}: {why}"
        if why in _UNFIT:
            raise NotUsableYet(
                f"{text}: certificate and key do not fit together, or only one of the two files is renewed so far"
            ) from error
        raise ConfigError(text) from error


def _checking(allowed: frozenset[str]) -> tuple[type[ssl.SSLSocket], type[ssl.SSLObject]]:
    """The classes of connections whose handshake fails for a peer that has none of the names."""

    class NamedSocket(ssl.SSLSocket):
        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            _require_name(self, allowed)

    class NamedObject(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            _require_name(self, allowed)

    return NamedSocket, NamedObject


def _require_name(peer: Any, allowed: frozenset[str]) -> None:
    names = _common_names(peer)
    if allowed.isdisjoint(names):
        shown = ", ".join(map(repr, names)) or "none"
        # with a number: of one argument alone, SSLError shows the tuple
        raise ssl.SSLError(1, f"the certificate's Common Names are {shown}, and cert-allowed-cn allows none of them")


def _common_names(peer: Any) -> list[str]:
    """The last Subject CN of each certificate in the peer's verified chain; of a resumed session, which has no chain, its own."""
    # The public method of Python 3.13 returns DER, which this module need not parse: this one is beneath it in every version.
    chain = [certificate.get_info() for certificate in peer._sslobj.get_verified_chain() or ()]
    found = []
    for certificate in chain or [peer.getpeercert() or {}]:
        values = [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
        found += values[-1:]
    return found
