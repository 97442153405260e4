"""Passwords as ``encrypted_password`` holds them: base64( iv, 16 bytes | "@" | AES-CFB of the password ). binlogctl and ``ctl`` write them.

The environment variable ``BINLOG_SECRET_KEY`` holds the key: 16, 24 or 32 bytes in hexadecimal. Without the variable a publicly known key
is used. The scheme does not detect a wrong key. The result is then random bytes, and an error only if these bytes are no text.

Promises: pure. A ``ValueError`` says what is wrong, and contains neither key, password nor encrypted password.
"""

import base64
import binascii
import secrets
from collections.abc import Mapping

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

SECRET_KEY = "BINLOG_SECRET_KEY"
"""The environment variable."""
_KNOWN_KEY = "a529b7665997f043a30ac8fadcb51d6aa032c226ab5b7750530b12b8c1a16a48"
_BLOCK = 16
_SEPARATOR = b"@"


def encrypted(password: str, environ: Mapping[str, str]) -> str:
    """The encrypted form of a password, another one each time."""
    iv = secrets.token_bytes(_BLOCK)
    return base64.b64encode(iv + _SEPARATOR + _through(_key_of(environ), iv, password.encode(), decrypts=False)).decode()


def decrypted(text: str, environ: Mapping[str, str]) -> str:
    """The password in its encrypted form.

    Raises:
        ValueError: it has another form, or the key is not the one that it was encrypted with.
    """
    key = _key_of(environ)
    try:
        data = base64.b64decode("".join(text.splitlines()), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("the value is not base64: write what `ctl encrypt` prints") from None
    iv, separator, rest = data[:_BLOCK], data[_BLOCK : _BLOCK + 1], data[_BLOCK + 1 :]
    if separator != _SEPARATOR:
        raise ValueError("the value is not an encrypted password: write what `ctl encrypt` prints")
    try:
        return _through(key, iv, rest, decrypts=True).decode()
    except UnicodeDecodeError:
        raise ValueError(
            f"the value was encrypted with another key than {SECRET_KEY} holds: set the right key, or encrypt the password again"
        ) from None


def uses_known_key(environ: Mapping[str, str]) -> bool:
    """Whether anybody can decrypt it, because ``BINLOG_SECRET_KEY`` is not set."""
    return not environ.get(SECRET_KEY)


def _key_of(environ: Mapping[str, str]) -> bytes:
    try:
        key = bytes.fromhex(environ.get(SECRET_KEY) or _KNOWN_KEY)
    except ValueError:
        key = b""
    if len(key) not in (16, 24, 32):
        raise ValueError(f"{SECRET_KEY} must be 16, 24 or 32 bytes in hexadecimal")
    return key


def _through(key: bytes, iv: bytes, data: bytes, *, decrypts: bool) -> bytes:
    """CFB with whole blocks, from the block cipher: libraries drop the mode, because it detects no change."""
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    out, before = b"", iv
    for at in range(0, len(data), _BLOCK):
        part = data[at : at + _BLOCK]
        done = bytes(a ^ b for a, b in zip(part, cipher.update(before), strict=False))
        out += done
        before = part if decrypts else done
    return out
