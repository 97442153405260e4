"""``encrypted_password``: the real scheme to the byte, and nothing of a secret in an error."""

import base64

import pytest

from pyspark_tidb_binlog.conf.encrypted import SECRET_KEY, decrypted, encrypted, uses_known_key

IV = bytes(range(16))
OPENSSL = "40b1390f81e34395cd15de5e3a50e895a9499ff4b2e818ae55a6f04745f1b9"


@pytest.mark.parametrize("size", [16, 24, 32])
def test_what_is_encrypted_comes_back(size: int) -> None:
    environ = {SECRET_KEY: "5a" * size}
    for password in ("", "a", "exactly 16 bytes", "17 bytes, no more", "größer als ein Block: 密码 " * 5):
        text = encrypted(password, environ)
        assert decrypted(text, environ) == password and encrypted(password, environ) != text
        assert base64.b64decode(text)[16:17] == b"@"


@pytest.mark.shows("syncer.to.encrypted_password")
def test_the_bytes_are_openssls() -> None:
    """``printf %s 'a secret of more than one block' | openssl enc -aes-256-cfb -K KEY -iv 000102…0f``."""
    made = bytes.fromhex(OPENSSL)
    assert decrypted(base64.b64encode(IV + b"@" + made).decode(), {}) == "a secret of more than one block"
    assert uses_known_key({}) and not uses_known_key({SECRET_KEY: "00" * 16})


def test_line_feeds_within_are_ignored_as_gos_decoder_does() -> None:
    text = encrypted("password of some length", {})
    assert decrypted(f"{text[:20]}\r\n{text[20:]}\n", {}) == "password of some length"


@pytest.mark.parametrize("text", ["hunter2!", "aHVudGVyMg==", base64.b64encode(IV + b"#hunter2").decode(), base64.b64encode(IV).decode()])
def test_another_form_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ValueError) as refused:
        decrypted(text, {})
    assert text not in str(refused.value) and "hunter" not in str(refused.value) and refused.value.__cause__ is None


@pytest.mark.parametrize("key", ["5a5a", "not hexadecimal", "5a" * 20])
def test_a_wrong_key_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(ValueError, match=SECRET_KEY) as refused:
        encrypted("password", {SECRET_KEY: key})
    assert key not in str(refused.value)


def test_another_key_is_noticed_where_it_gives_no_text() -> None:
    text = encrypted("a password that is long enough to become something that is no text", {SECRET_KEY: "11" * 32})
    with pytest.raises(ValueError, match="another key"):
        decrypted(text, {SECRET_KEY: "22" * 32})
