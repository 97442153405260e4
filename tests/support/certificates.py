"""A certificate authority for tests: makes real certificates as files, as an operator has them.

Promises: every key is new, and made with the ``cryptography`` library; a certificate is valid for 127.0.0.1 and localhost unless asked otherwise.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from pyspark_tidb_binlog.conf.model import SecurityConfig
from pyspark_tidb_binlog.schemas.tls import TlsSettings

DAY = timedelta(days=1)


def table_of(tls: TlsSettings | None) -> SecurityConfig:
    """The table ``security`` that says the same."""
    return SecurityConfig() if tls is None else SecurityConfig(tls.ca, tls.cert, tls.key, tls.allowed_cn)


@dataclass(frozen=True, slots=True)
class Certified:
    """A certificate and its key, as files and to sign with."""

    cert: Path
    key: Path
    made: x509.Certificate
    secret: ec.EllipticCurvePrivateKey


class Authority:
    """A CA in ``directory``, with the name ``cn``; ``signed_by``: an intermediate one."""

    def __init__(self, directory: Path, cn: str = "test-ca", signed_by: "Authority | None" = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._own = self._make(cn, cn, signed_by._own if signed_by else None, is_ca=True)

    @property
    def ca(self) -> str:
        """The file of its certificate."""
        return str(self._own.cert)

    def certify(
        self, file: str, cn: str = "node", *, names: tuple[str, ...] = ("127.0.0.1", "localhost"), expired: bool = False
    ) -> Certified:
        """Sign a certificate with the Subject CN ``cn`` for ``names``; the files are ``file.pem``, with what leads to the CA, and ``file.key``."""
        made = self._make(file, cn, self._own, names=names, expired=expired)
        with made.cert.open("ab") as chain:
            chain.write(self._own.cert.read_bytes())
        return made

    def settings(self, file: str = "node", cn: str = "node", allowed_cn: tuple[str, ...] = (), **more: object) -> TlsSettings:
        """The settings of a node with a certificate of this CA, which also trusts this CA."""
        made = self.certify(file, cn, **more)  # type: ignore[arg-type]
        return TlsSettings(self.ca, str(made.cert), str(made.key), allowed_cn)

    def _make(
        self,
        file: str,
        cn: str,
        issuer: Certified | None,
        *,
        names: tuple[str, ...] = (),
        is_ca: bool = False,
        expired: bool = False,
    ) -> Certified:
        secret = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "tests"), x509.NameAttribute(x509.NameOID.COMMON_NAME, cn)])
        ends = datetime.now(UTC) + (-DAY if expired else DAY)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer.made.subject if issuer else subject)
            .public_key(secret.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(ends - 2 * DAY)
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(secret.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key((issuer.secret if issuer else secret).public_key()), critical=False
            )
        )
        if names:
            shown = [x509.IPAddress(ip_address(name)) if name[0].isdigit() else x509.DNSName(name) for name in names]
            builder = builder.add_extension(x509.SubjectAlternativeName(shown), critical=False)
        made = builder.sign(issuer.secret if issuer else secret, hashes.SHA256())
        cert, key = self._directory / f"{file}.pem", self._directory / f"{file}.key"
        cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        key.write_bytes(secret.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        return Certified(cert, key, made, secret)
