"""DECIMAL as MySQL's binary form (rows.md 4) and as plain text.

    datum = precision (1 byte) | scale (1 byte) | digits
    digits = leading integer digits | 9-digit integer words | 9-digit fraction words | trailing fraction digits

Words are big-endian and take 4 bytes; 0..9 remaining digits take 0,1,1,2,2,3,3,4,4,4. The first bit is inverted; for a negative
number every bit is then inverted. Text is plain: no exponent, no leading zeros, at least one integer digit, no "-" on zero.

Promises: pure; invalid digits, and sizes beyond DECIMAL(65,30), raise ``Corruption``.
"""

from collections.abc import Iterator

from pyspark_tidb_binlog.schemas.errors import Corruption

MAX_PRECISION = 65
MAX_SCALE = 30
DIGITS_PER_WORD = 9
BYTES_OF_DIGITS = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
HEADER = 2
"""Bytes of precision and scale before the digits."""


def groups_of(precision: int, scale: int) -> tuple[int, ...]:
    """How many digits each group of bytes holds, in order, for a DECIMAL(precision, scale)."""
    whole, whole_left = divmod(precision - scale, DIGITS_PER_WORD)
    frac, frac_left = divmod(scale, DIGITS_PER_WORD)
    groups = (whole_left, *([DIGITS_PER_WORD] * (whole + frac)), frac_left)
    return tuple(g for g in groups if g)


def is_valid_size(precision: int, scale: int) -> bool:
    """Whether TiDB supports a DECIMAL of this size."""
    return 1 <= precision <= MAX_PRECISION and scale <= min(MAX_SCALE, precision)


def size_of(precision: int, scale: int) -> int:
    """Bytes of the digits of a DECIMAL(precision, scale); ``Corruption`` when the type does not exist."""
    if not is_valid_size(precision, scale):
        raise Corruption(f"DECIMAL({precision},{scale}) does not exist")
    return sum(BYTES_OF_DIGITS[g] for g in groups_of(precision, scale))


def decode_decimal(body: bytes, scale: int) -> str:
    """The text of a datum body, with at least ``scale`` fraction digits."""
    precision, frac = body[0], body[1]
    if len(body) != HEADER + size_of(precision, frac):
        raise Corruption(f"a DECIMAL({precision},{frac}) has a body of {len(body)} bytes, which is not its size")
    digits = "".join(_digits(body[HEADER:], groups_of(precision, frac)))
    negative = not body[HEADER] & 0x80
    whole, fraction = digits[: precision - frac].lstrip("0"), digits[precision - frac :].ljust(scale, "0")
    sign = "-" if negative and digits.strip("0") else ""
    return f"{sign}{whole or '0'}{'.' if fraction else ''}{fraction}"


def _digits(raw: bytes, groups: tuple[int, ...]) -> Iterator[str]:
    flip = b"\x80" if raw[0] & 0x80 else b"\x7f"
    plain = bytes([raw[0] ^ flip[0]]) + (raw[1:] if raw[0] & 0x80 else bytes(b ^ 0xFF for b in raw[1:]))
    pos = 0
    for count in groups:
        size = BYTES_OF_DIGITS[count]
        word = str(int.from_bytes(plain[pos : pos + size], "big")).zfill(count)
        if len(word) > count:
            raise Corruption(f"a group of {count} decimal digits holds {word}")
        yield word
        pos += size
