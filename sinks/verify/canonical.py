"""The canonical text of a value: equal on two servers where the values are equal, and different where they differ. Pure.

    form        columns on both sides               read as              hashed as              literal
    WHOLE       integers, YEAR, BIT                 digits               the same               bare
    DECIMAL     DECIMAL of the same scale           digits               the same               bare
    MOMENT      times with the same digits          the server's text    CAST AS CHAR           quoted
    TEXT        texts, ENUM and SET by name         UTF-8                HEX or SHA1 of UTF-8   quoted
    BYTES       BINARY, VARBINARY, BLOB             bytes                HEX or SHA1            _binary
    FLOAT       FLOAT, DOUBLE                       the DOUBLE           not in SQL             bare
    NUMBER      other numbers, other scales         digits               not in SQL             bare
    TIME        times with other digits             the server's text    not in SQL             quoted
    DOCUMENT    JSON on one side                    the document         not in SQL             quoted

Servers print a DOUBLE and a JSON document differently, so these forms are compared here, from the rows (``canonical``). Texts are never compared by ``=``: a
collation takes 'a' and 'A', or 'a' and 'a ', for equal. NULL is ``N``, which no other text is.

Promises: two columns without a common form are not compared (``form_of_both`` is None). All expressions are for sessions of ``sinks.mysql.session``: utf8mb4, UTC.
"""

import enum
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark_tidb_binlog.schemas.changes.row_images import document_text
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name, quote_string
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour
from pyspark_tidb_binlog.sinks.mysql.literals import LiteralForm
from pyspark_tidb_binlog.sinks.mysql.structure import TargetColumn


class Form(enum.Enum):
    """A form of values that two columns have in common."""

    WHOLE = enum.auto()
    DECIMAL = enum.auto()
    MOMENT = enum.auto()
    TEXT = enum.auto()
    BYTES = enum.auto()
    FLOAT = enum.auto()
    NUMBER = enum.auto()
    TIME = enum.auto()
    DOCUMENT = enum.auto()

    @property
    def in_sql(self) -> bool:
        """Whether servers can hash the values."""
        return self not in _CANONICAL

    @property
    def literal(self) -> LiteralForm:
        """The form of the values' literals."""
        if self is Form.BYTES:
            return LiteralForm.BYTES
        return LiteralForm.BARE if self in _BARE else LiteralForm.TEXT


_BARE = frozenset({Form.WHOLE, Form.DECIMAL, Form.FLOAT, Form.NUMBER})
_LARGE = re.compile(r"(tiny|medium|long)?(text|blob)")
"""Hashed before they are joined: their HEX may be longer than ``max_allowed_packet``."""
_IN_UTF8 = frozenset({"utf8mb4", "utf8", "utf8mb3", "ascii"})
_KEYS, _KEY_TEXTS = frozenset({"whole", "decimal", "moment", "time", "bytes"}), frozenset({"char", "varchar"})


def form_of_both(one: TargetColumn, other: TargetColumn) -> Form | None:
    """The form that values of both columns have; None: they cannot be compared."""
    same = _digits(one) == _digits(other)
    match sorted({one.family, other.family}):
        case ["whole"]:
            return Form.WHOLE
        case ["decimal"] if same:
            return Form.DECIMAL
        case ["decimal"] | ["decimal", "whole"]:
            return Form.NUMBER
        case ["float"]:
            return Form.FLOAT
        case ["moment"] | ["time"]:
            return Form.MOMENT if same and (one.kind == "date") == (other.kind == "date") else Form.TIME
        case ["text"]:
            return Form.TEXT
        case ["bytes"]:
            return Form.BYTES
        case ["json"] | ["json", "text"]:
            return Form.DOCUMENT
        case _:
            return None


def _digits(column: TargetColumn) -> int:
    """The digits behind the point of a DECIMAL or a time."""
    return column.measures[1] if column.family == "decimal" else max(column.measures[0], 0)


def orders(column: TargetColumn) -> bool:
    """Whether the column may be part of a key whose ranges are read: a server sorts it as it compares it with a literal."""
    return column.kind in _KEY_TEXTS or (column.family in _KEYS and column.kind != "bit")


def sort_alike(one: TargetColumn, other: TargetColumn) -> bool:
    """Whether both servers sort the columns' texts alike, but for few. Otherwise their ranges would have other rows."""
    kinds = {"bin" if c.collation.lower().endswith("_bin") else c.collation.lower().removeprefix(c.charset) for c in (one, other)}
    return len(kinds) == 1


def read_as(column: TargetColumn) -> str:
    """The expression whose text, in the answer of a server, is the value."""
    name = quote_name(column.name)
    if column.kind == "bit":
        return f"CAST({name} AS UNSIGNED)"
    if column.family == "float":
        return f"{name} * 1e0"  # as FLOAT, servers show six digits
    return f"{name} + 0" if column.kind == "year" or "zerofill" in column.type.lower() else name


@dataclass(frozen=True, slots=True)
class HashedColumn:
    """A column of one side, as its server hashes it."""

    column: TargetColumn
    form: Form
    large: bool
    """Whether the values of this column, or of the other side's, are hashed one by one."""

    def sql(self, flavour: Flavour) -> str:
        """A text without a comma; NULL is ``N``."""
        text = self._text(flavour)
        return f"IF({quote_name(self.column.name)} IS NULL, 'N', {text})" if self.column.nullable else text

    def _text(self, flavour: Flavour) -> str:
        value = read_as(self.column)
        if self.form is Form.MOMENT:
            return f"CAST({value} AS CHAR)"
        if self.form is Form.TEXT and not self._is_utf8(flavour):
            value = f"CONVERT({value} USING utf8mb4)"
        if self.form in (Form.TEXT, Form.BYTES):
            return f"SHA1({value})" if self.large else f"HEX({value})"
        return value

    def _is_utf8(self, flavour: Flavour) -> bool:
        charset = self.column.charset
        return charset in _IN_UTF8 or (flavour is Flavour.TIDB and charset != "gbk")  # TiDB's latin1 is UTF-8, too


def is_large(column: TargetColumn) -> bool:
    """Whether a value may be large."""
    return _LARGE.fullmatch(column.kind) is not None


COUNTED = 10**30
"""Added to the hash of each row: a sum beyond the hashes says how many rows had one, and a row that a server cannot hash is noticed."""


def sum_sql(columns: Sequence[HashedColumn], flavour: Flavour) -> str:
    """The expressions of the number of rows and of the sum of their hashes.

    A sum of ``CONV`` alone is a sum of DOUBLEs, which loses bits. A text that is longer than ``max_allowed_packet`` is NULL, and so is the hash of its row: ``CONCAT_WS`` and
    ``IFNULL`` would hide it. Half of a range can be subtracted from the whole, and a row that is there twice counts twice.
    """
    row = ", ',', ".join(column.sql(flavour) for column in columns)
    return f"COUNT(*), SUM(CAST(CONV(LEFT(SHA1(CONCAT({row})), 16), 16, 10) AS UNSIGNED) + {COUNTED})"


def canonical(form: Form, value: bytes | None) -> bytes | None:
    """The canonical text of a value as ``read_as`` has it."""
    change = _CANONICAL.get(form)
    return value if value is None or change is None else change(value)


def _float(text: bytes) -> bytes:
    return repr(float(text) + 0.0).encode()  # no server reads a literal as minus zero


def _number(text: bytes) -> bytes:
    shortest = text.rstrip(b"0").removesuffix(b".") if b"." in text else text
    return b"0" if shortest in (b"-0", b"-", b"") else shortest


def _time(text: bytes) -> bytes:
    whole, _, fraction = text.partition(b".")
    fraction = fraction.rstrip(b"0")
    return whole.removesuffix(b" 00:00:00") if not fraction else whole + b"." + fraction


def _document(text: bytes) -> bytes:
    try:
        return document_text(json.loads(text)).encode("utf-8", "surrogatepass")
    except ValueError:
        return text


_CANONICAL: Mapping[Form, Callable[[bytes], bytes]] = {
    Form.FLOAT: _float,
    Form.NUMBER: _number,
    Form.TIME: _time,
    Form.DOCUMENT: _document,
}


def literal_of(form: Form, value: bytes | None) -> str:
    """A value as ``read_as`` has it, as SQL that a person can read and hand on."""
    if value is None:
        return "NULL"
    match form.literal:
        case LiteralForm.BARE:
            return value.decode()
        case LiteralForm.BYTES:
            return f"x'{value.hex().upper()}'"
        case _:
            text = value.decode()
            # Neither a terminal nor a sql_mode changes what it means.
            return quote_string(text) if text.isprintable() and "\\" not in text else f"_utf8mb4 x'{value.hex().upper()}'"


def equals(column: TargetColumn, form: Form, literal: str, flavour: Flavour) -> str:
    """The condition that is true for exactly one value; ``literal``: of ``literal_of``."""
    name = quote_name(column.name)
    if form is Form.FLOAT:
        return f"{name} * 1e0 <=> {literal}"
    if form is Form.DOCUMENT and column.kind == "json" and flavour is not Flavour.MARIADB:
        return f"{name} <=> CAST({literal} AS JSON)"
    if form is Form.TEXT or form is Form.DOCUMENT:
        return f"CAST(CONVERT({name} USING utf8mb4) AS BINARY) <=> {literal}"
    return f"{name} <=> {literal}"
