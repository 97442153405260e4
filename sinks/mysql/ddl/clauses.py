"""Parts of DDL text: column definitions, index definitions and table options, edited so that a MySQL or MariaDB target accepts them.

Promises: pure; works on tokens (``schemas.ddl_tokens``), so quoted names and strings are never mistaken for keywords. What is left out
because the target cannot hold it is reported in ``Losses``. Requires that TiDB's feature comments were removed before.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pyspark_tidb_binlog.schemas.ddl_tokens import Token, TokenKind, quote_name, text_of, tokenize
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, TableInfo
from pyspark_tidb_binlog.sinks.mysql.ddl.charsets import UPSTREAM_DEFAULT, Charset, target_charset
from pyspark_tidb_binlog.sinks.mysql.ddl.long_keys import too_long
from pyspark_tidb_binlog.sinks.mysql.dialect import Flavour, is_text

Tokens = list[Token]

_CONDITIONS = (["IF", "NOT", "EXISTS"], ["IF", "EXISTS"])

_TEXT_TYPES = frozenset(
    {"CHAR", "VARCHAR", "NCHAR", "NVARCHAR", "CHARACTER", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT", "ENUM", "SET", "LONG"}
)
_INDEX_WORDS = frozenset({"CONSTRAINT", "PRIMARY", "UNIQUE", "INDEX", "KEY", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK"})


@dataclass(frozen=True, slots=True)
class Dialect:
    """The properties of the target that DDL text depends on, and the upstream's default charset."""

    flavour: Flavour
    default: Charset = field(default_factory=lambda: UPSTREAM_DEFAULT)
    nopad: bool = True
    """A collation that may pad upstream becomes one that does not."""
    binary: bool = False
    """Every collation becomes one that compares bytes, as upstream."""
    folds_names: bool = False
    """Names of tables and databases are stored in lower case (``lower_case_table_names = 1``)."""

    def charset(self, charset: str, collate: str) -> Charset:
        """The target's charset for one of the upstream."""
        return target_charset(charset, collate, self.flavour, self.default, nopad=self.nopad, binary=self.binary)

    def column_charset(self, column: ColumnInfo, info: TableInfo) -> Charset:
        """The target's charset for a column of ``info``, which keeps its own where a longer one does not fit."""
        found = self.charset(column.charset, column.collate)
        if self.binary and self.nopad and self.flavour is Flavour.MYSQL and too_long(column, info):
            own = replace(self, nopad=False).charset(column.charset, column.collate)
            return found if own.charset == found.charset else own
        return found

    def others(self) -> "tuple[Dialect, ...]":
        """The same as it was, or will be, under another ``spark.upstream-new-collations``; the ones that keep more values apart first."""
        ways = ((True, True), (False, True), (True, False), (False, False))
        return tuple(replace(self, nopad=nopad, binary=binary) for nopad, binary in ways if (nopad, binary) != (self.nopad, self.binary))


class Losses:
    """Collects what had to be left out of one statement, each text once."""

    def __init__(self, subject: str) -> None:
        """``subject``: the ``schema.table`` with which every text begins."""
        self._subject = subject
        self.texts: list[str] = []

    def add(self, what: str) -> None:
        """Note one loss."""
        text = f"{self._subject}: {what}"
        if text not in self.texts:
            self.texts.append(text)


def words(tokens: Iterable[Token]) -> list[str]:
    """The keywords and signs of the non-blank tokens; an empty word for each name and string."""
    return [t.word for t in tokens if not t.blank]


def split_commas(tokens: Sequence[Token]) -> list[Tokens]:
    """The pieces between top-level commas."""
    pieces: list[Tokens] = [[]]
    for depth, token in with_depth(tokens):
        if depth == 0 and token.text == ",":
            pieces.append([])
        else:
            pieces[-1].append(token)
    return pieces


def with_depth(tokens: Iterable[Token]) -> Iterator[tuple[int, Token]]:
    """Each token with its parenthesis depth; a parenthesis itself has the depth of its content."""
    depth = 0
    for token in tokens:
        if token.kind is TokenKind.SIGN and token.text == "(":
            depth += 1
        yield depth, token
        if token.kind is TokenKind.SIGN and token.text == ")":
            depth -= 1


def closing(tokens: Sequence[Token], opening: int) -> int:
    """Index of the parenthesis that closes the one at ``opening``; the length if there is none."""
    for i, (depth, token) in enumerate(with_depth(tokens[opening:])):
        if depth == 1 and token.text == ")" and token.kind is TokenKind.SIGN:
            return opening + i
    return len(tokens)


def strip(tokens: Sequence[Token]) -> Tokens:
    """The tokens without blanks at both ends."""
    left, right = 0, len(tokens)
    while left < right and tokens[left].blank:
        left += 1
    while right > left and tokens[right - 1].blank:
        right -= 1
    return list(tokens[left:right])


def next_solid(tokens: Sequence[Token], at: int) -> int:
    """Index of the first non-blank token from ``at`` on; the length if there is none."""
    while at < len(tokens) and tokens[at].blank:
        at += 1
    return at


def without_if_not_exists(tokens: Sequence[Token]) -> Tokens:
    """CREATE TABLE, CREATE INDEX and ALTER TABLE without IF NOT EXISTS: the object did not exist upstream, or there would be no job.

    So the target reports an existing object, which must then be compared.
    """
    solid = [i for i, t in enumerate(tokens) if not t.blank]
    spoken = [tokens[i].word for i in solid]
    if spoken[:1] not in (["CREATE"], ["ALTER"]) or not {"TABLE", "INDEX"} & set(spoken[1:4]):
        return list(tokens)
    dropped: set[int] = set()
    for n in range(len(solid) - 3):
        if spoken[n : n + 3] == ["IF", "NOT", "EXISTS"]:
            dropped.update(range(solid[n], solid[n + 3]))
    return [t for i, t in enumerate(tokens) if i not in dropped]


def without_conditions(tokens: Sequence[Token]) -> Tokens:
    """What is altered, without IF EXISTS and IF NOT EXISTS, for which MySQL has no syntax there. What the upstream has executed was so."""
    inside = {i for i, (depth, _) in enumerate(with_depth(tokens)) if depth}
    solid = [i for i, t in enumerate(tokens) if not t.blank]
    spoken = ["" if i in inside else tokens[i].word for i in solid]
    dropped: set[int] = set()
    for n in range(len(solid)):
        many = next((len(run) for run in _CONDITIONS if spoken[n : n + len(run)] == run), 0)
        if many and n + many < len(solid):
            dropped.update(range(solid[n], solid[n + many]))
    return [t for i, t in enumerate(tokens) if i not in dropped]


def plain_strings(tokens: Sequence[Token], *, restored: bool) -> Tokens:
    """Strings for our sql_mode: restored text has unescaped backslashes. ``_UTF8MB4`` is removed, being the connection's charset."""
    out: Tokens = []
    for i, token in enumerate(tokens):
        if token.word == "_UTF8MB4" and i + 1 < len(tokens) and tokens[i + 1].kind is TokenKind.STRING:
            continue
        if restored and token.kind is TokenKind.STRING and "\\" in token.text:
            token = Token(TokenKind.STRING, token.text.replace("\\", "\\\\"))
        out.append(token)
    return out


def is_index(element: Sequence[Token]) -> bool:
    """Whether an element of a column list defines a key or a constraint, not a column."""
    return bool(words(element)) and words(element)[0] in _INDEX_WORDS


def edit_column(element: Tokens, info: TableInfo | None, dialect: Dialect, losses: Losses, *, explicit: bool) -> Tokens:
    """Edit one column definition, which begins with the column's name.

    ``explicit``: write the charset even if it is the table's, because the target's table may have another one.
    """
    tokens = strip(element)
    if not tokens:
        return tokens
    name = tokens[0].name
    column = next((c for c in info.columns if c.name.lower() == name.lower()), None) if info else None
    tokens = _without_checks(tokens, losses)
    tokens = _without_tidb_words(tokens, losses)
    if dialect.flavour is Flavour.MYSQL:
        tokens = _without_nextval(tokens, name, losses)
    return _with_charset(tokens, column, info, dialect, explicit=explicit)


def edit_index(element: Tokens, dialect: Dialect, losses: Losses, name: str = "") -> Tokens | None:
    """Edit one key or constraint; None if it is left out. ``name``: the index's name if it is elsewhere in the text."""
    tokens = strip(element)
    spoken = words(tokens)
    if "CHECK" in spoken[:3]:
        losses.add("CHECK constraint left out, because the upstream has checked it")
        return None
    if _is_expression_index(tokens) and dialect.flavour is Flavour.MARIADB:
        losses.add(f"expression index {name or _index_name(tokens)} left out")
        return None
    tokens = _without_tidb_words(tokens, losses)
    return visibility(tokens, dialect)


def visibility(tokens: Tokens, dialect: Dialect) -> Tokens:
    """INVISIBLE and VISIBLE in the target's syntax."""
    if dialect.flavour is not Flavour.MARIADB:
        return tokens
    renamed = {"INVISIBLE": "IGNORED", "VISIBLE": "NOT IGNORED"}
    return [Token(TokenKind.WORD, renamed[t.word]) if d == 0 and t.word in renamed else t for d, t in with_depth(tokens)]


def charset_text(found: Charset) -> str:
    """The charset clause of a column."""
    return f"CHARACTER SET {found.charset} COLLATE {found.collate}"


def _is_expression_index(tokens: Sequence[Token]) -> bool:
    """Whether a key part is parenthesised, which makes it an expression."""
    inside = [(d, t) for d, t in with_depth(tokens) if not t.blank]
    return any(
        before[0] == 1 and before[1].text in ("(", ",") and after[0] == 2 and after[1].text == "("
        for before, after in zip(inside, inside[1:], strict=False)
    )


def _index_name(tokens: Sequence[Token]) -> str:
    named = [t for d, t in with_depth(tokens) if d == 0 and not t.blank and (t.kind is TokenKind.NAME or t.word not in _INDEX_WORDS)]
    return named[0].name if named else "without a name"


def _remove(tokens: Tokens, match: Callable[[Sequence[Token], int], int]) -> Tokens:
    """The tokens without every top-level run that begins at an ``i`` and ends at ``match(tokens, i)`` (0 = no match)."""
    out: Tokens = []
    i = depth = 0
    while i < len(tokens):
        end = match(tokens, i) if depth == 0 and not tokens[i].blank else 0
        if end:
            i = next_solid(tokens, end) if out and out[-1].blank else end
            continue
        depth += {"(": 1, ")": -1}.get(tokens[i].text, 0) if tokens[i].kind is TokenKind.SIGN else 0
        out.append(tokens[i])
        i += 1
    return strip(out)


def _after_group(tokens: Sequence[Token], at: int) -> int:
    """The index after a parenthesised group at ``at``, or ``at`` if there is none."""
    opening = next_solid(tokens, at)
    return closing(tokens, opening) + 1 if opening < len(tokens) and tokens[opening].text == "(" else at


def _without_checks(tokens: Tokens, losses: Losses) -> Tokens:
    def match(at: Sequence[Token], i: int) -> int:
        start = i
        if at[i].word == "CONSTRAINT":
            i = next_solid(at, i + 1)
            if i < len(at) and at[i].word != "CHECK":
                i = next_solid(at, i + 1)
        if i >= len(at) or at[i].word != "CHECK" or start == 0:
            return 0
        end = _after_group(at, i + 1)
        while (n := next_solid(at, end)) < len(at) and at[n].word in ("NOT", "ENFORCED"):
            following = next_solid(at, n + 1)
            if at[n].word == "NOT" and (following >= len(at) or at[following].word != "ENFORCED"):
                break
            end = n + 1
        losses.add("CHECK constraint left out, because the upstream has checked it")
        return end

    return _remove(tokens, match)


def _without_tidb_words(tokens: Tokens, losses: Losses) -> Tokens:
    def match(at: Sequence[Token], i: int) -> int:
        if i == 0 and at[i].word not in ("CLUSTERED", "NONCLUSTERED"):
            return 0
        match at[i].word:
            case "AUTO_RANDOM":
                losses.add("AUTO_RANDOM left out")
                return _after_group(at, i + 1)
            case "CLUSTERED" | "NONCLUSTERED":
                return i + 1
            case "GLOBAL" | "LOCAL":
                return i + 1
            case "COLUMN_FORMAT" | "STORAGE":
                return next_solid(at, i + 1) + 1
        return 0

    return _remove(tokens, match)


def _without_nextval(tokens: Tokens, name: str, losses: Losses) -> Tokens:
    def match(at: Sequence[Token], i: int) -> int:
        if at[i].word != "DEFAULT":
            return 0
        value = next_solid(at, i + 1)
        if value >= len(at) or at[value].word not in ("NEXTVAL", "NEXT"):
            return 0
        losses.add(f"column {name}: default from a sequence left out")
        if at[value].word == "NEXTVAL":
            return _after_group(at, value + 1)
        end = value
        while end < len(at) and at[end].word != "FOR":
            end += 1
        return next_solid(at, end + 1) + 1

    return _remove(tokens, match)


def _charset_clause(at: Sequence[Token], i: int) -> int:
    """The end of a ``[DEFAULT] CHARACTER SET x``, ``CHARSET x`` or ``COLLATE x`` at ``i``; 0 if there is none."""
    if at[i].word == "DEFAULT":
        following = next_solid(at, i + 1)
        return _charset_clause(at, following) if following < len(at) and at[following].word != "DEFAULT" else 0
    if at[i].word in ("CHARSET", "COLLATE"):
        value = next_solid(at, i + 1)
    elif at[i].word == "CHARACTER":
        following = next_solid(at, i + 1)
        if following >= len(at) or at[following].word != "SET":
            return 0
        value = next_solid(at, following + 1)
    else:
        return 0
    if value < len(at) and at[value].text == "=":
        value = next_solid(at, value + 1)
    return value + 1


def without_charset(tokens: Tokens) -> Tokens:
    """The column's tokens without top-level charset and collation clauses: BINARY behind a type means the ``_bin`` of its charset, which may pad."""

    def match(at: Sequence[Token], i: int) -> int:
        if not i:
            return 0
        return i + 1 if at[i].word == "BINARY" else _charset_clause(at, i)

    return _remove(tokens, match)


def is_charset_only(tokens: Sequence[Token]) -> bool:
    """Whether there are only charset and collation clauses, as in ``ALTER TABLE t COLLATE x``."""
    rest = _remove(list(strip(tokens)), _charset_clause)
    return not words(rest)


_NATIONAL = {"NCHAR": "CHAR", "NVARCHAR": "VARCHAR"}


def _without_national(tokens: Tokens) -> Tokens:
    """NATIONAL VARCHAR and NCHAR as VARCHAR and CHAR: other servers take them for a charset that holds less."""
    at = next_solid(tokens, 1)
    if at < len(tokens) and tokens[at].word == "NATIONAL":
        return [*tokens[:at], *tokens[next_solid(tokens, at + 1) :]]
    if at < len(tokens) and tokens[at].word in _NATIONAL:
        return [*tokens[:at], Token(TokenKind.WORD, _NATIONAL[tokens[at].word]), *tokens[at + 1 :]]
    return tokens


def _with_charset(tokens: Tokens, column: ColumnInfo | None, info: TableInfo | None, dialect: Dialect, *, explicit: bool) -> Tokens:
    """The definition with the column's charset written directly after its type."""
    tokens = _without_national(tokens)
    at = next_solid(tokens, 1)
    if column is None or info is None or at >= len(tokens) or not is_text_or_words(column) or tokens[at].word not in _TEXT_TYPES:
        return tokens
    own = dialect.column_charset(column, info)
    bare = without_charset(tokens)
    if own == dialect.charset(info.charset, info.collate) and not explicit:
        return bare
    end = at + 1
    following = next_solid(bare, end)
    while following < len(bare) and bare[following].word in ("VARYING", "VARCHAR", "CHAR", "CHARACTER"):
        end = following + 1
        following = next_solid(bare, end)
    end = _after_group(bare, end)
    return [*bare[:end], *tokenize(" " + charset_text(own)), *bare[end:]]


def is_text_or_words(column: ColumnInfo) -> bool:
    """Whether the column's values have a charset: text, ENUM or SET."""
    return is_text(column) or (bool(column.elems) and not column.is_binary)


def quoted(schema: str, name: str) -> str:
    """A table name qualified with its database, quoted."""
    return f"{quote_name(schema)}.{quote_name(name)}"


def table_options(tail: Tokens, info: TableInfo | None, dialect: Dialect, losses: Losses) -> str:
    """The text after the column list of a CREATE TABLE: an explicit charset, AUTO_INCREMENT, COMMENT and partitions.

    Other options are left out: they are specific to TiDB, or would make the target's table non-transactional (``ENGINE = MyISAM``).
    """
    begin = next((i for i, (d, t) in enumerate(with_depth(tail)) if d == 0 and t.word == "PARTITION"), len(tail))
    options, partition = tail[:begin], strip(tail[begin:])
    found = dialect.charset(info.charset if info else "", info.collate if info else "")
    parts = [f"DEFAULT CHARACTER SET = {found.charset} COLLATE = {found.collate}"]
    for i, token in enumerate(options):
        if token.word in ("AUTO_INCREMENT", "COMMENT"):
            value = next_solid(options, i + 1)
            if value < len(options) and options[value].text == "=":
                value = next_solid(options, value + 1)
            if value < len(options):
                parts.append(f"{token.word} = {options[value].text}")
        elif token.word == "TTL":
            losses.add("TTL left out")
    if partition and (info is None or info.partitions):  # without them, the upstream has parsed the clause and made none
        parts.append(text_of(_without_tidb_words(partition, losses)))
    return " ".join(parts)
