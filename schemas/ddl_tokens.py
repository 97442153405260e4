"""SQL text as tokens: enough of MySQL's lexical rules to edit TiDB's DDL text without a parser.

Promises: pure and lossless: the token texts joined are the input. Handled are quoting ('..', ".." and `..` with doubled quotes,
backslashes in strings), the three kinds of comments, and feature comments. The content of a feature comment counts as SQL:
``/*T! x */``, ``/*T![feature] x */``, ``/*!50000 x */`` become FEATURE_OPEN, the tokens of x, FEATURE_CLOSE.
An unterminated quote or comment extends to the end of the text. TiDB never writes one, but a user's text may contain one.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum


class TokenKind(Enum):
    """What one token is."""

    SPACE = "space"
    COMMENT = "comment"
    FEATURE_OPEN = "feature open"
    FEATURE_CLOSE = "feature close"
    WORD = "word"
    NAME = "name"
    STRING = "string"
    NUMBER = "number"
    SIGN = "sign"


_BLANK = frozenset({TokenKind.SPACE, TokenKind.COMMENT, TokenKind.FEATURE_OPEN, TokenKind.FEATURE_CLOSE})


@dataclass(frozen=True, slots=True)
class Token:
    """One piece of the text; keywords are compared by ``word``: upper case, empty for anything but a bare word or sign."""

    kind: TokenKind
    text: str

    @property
    def word(self) -> str:
        """The upper-case keyword or sign; empty for names, strings, numbers and blanks."""
        return self.text.upper() if self.kind in (TokenKind.WORD, TokenKind.SIGN) else ""

    @property
    def blank(self) -> bool:
        """Whether the token has no meaning: space, comment or mark of a feature comment."""
        return self.kind in _BLANK

    @property
    def name(self) -> str:
        """The identifier this token spells: a bare word, or a quoted name without its quotes."""
        if self.kind is TokenKind.NAME or (self.kind is TokenKind.STRING and self.text.startswith('"')):
            quote = self.text[0]
            return self.text[1:-1].replace(quote * 2, quote)
        return self.text


_STRINGS = {
    True: r"""'(?:[^'\\]|''|\\.)*(?:'|\Z) | "(?:[^"\\]|""|\\.)*(?:"|\Z)""",
    False: r"""'(?:[^']|'')*(?:'|\Z) | "(?:[^"]|"")*(?:"|\Z)""",
}
_PATTERNS = {
    escapes: re.compile(
        rf"""(?P<space>\s+)
          | (?P<feature_open>/\*(?:T!(?:\[[a-z_,]*\])?|!\d*|M!\d*))
          | (?P<comment>/\*.*?(?:\*/|\Z) | --(?=\s|\Z)[^\n]*\n? | \#[^\n]*\n?)
          | (?P<feature_close>\*/)
          | (?P<string>{strings})
          | (?P<name>`(?:[^`]|``)*(?:`|\Z))
          | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w$]))
          | (?P<word>[\w$@]+)
          | (?P<sign>.)
        """,
        re.VERBOSE | re.DOTALL,
    )
    for escapes, strings in _STRINGS.items()
}
_KINDS = {k.name.lower(): k for k in TokenKind}


Tokens = list[Token]


def tokenize(sql: str, *, backslash_escapes: bool = True) -> tuple[Token, ...]:
    """The tokens of ``sql``, blanks included.

    TiDB restores its DDL text without escaping: a backslash in a string is a plain backslash there (``backslash_escapes=False``).
    """
    return tuple(Token(_KINDS[m.lastgroup or "sign"], m.group()) for m in _PATTERNS[backslash_escapes].finditer(sql))


def significant(sql: str) -> tuple[Token, ...]:
    """The meaningful tokens: no spaces, comments, marks of feature comments, or trailing semicolons."""
    tokens = [t for t in tokenize(sql) if not t.blank]
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    return tuple(tokens)


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


def strip(tokens: Sequence[Token]) -> Tokens:
    """The tokens without blanks at both ends."""
    left, right = 0, len(tokens)
    while left < right and tokens[left].blank:
        left += 1
    while right > left and tokens[right - 1].blank:
        right -= 1
    return list(tokens[left:right])


def is_setval(query: str) -> bool:
    """Whether a DDL binlog records the refill of a sequence's cache: it has a DDL text but no job (ddl.md 1)."""
    tokens = significant(query[:80])
    return len(tokens) > 1 and tokens[0].word == "SELECT" and tokens[1].word == "SETVAL"


def read_setval(query: str) -> "tuple[QualifiedName, int]":
    """The sequence and the number of a text for which ``is_setval`` holds."""
    tokens = significant(query)
    name, at = read_name(tokens, 3)
    return name, int(text_of(tokens[at + 1 : -1]))


def text_of(tokens: Sequence[Token]) -> str:
    """The text the tokens were made from."""
    return "".join(t.text for t in tokens)


def quote_name(name: str) -> str:
    """``name`` as a back-quoted identifier."""
    return "`" + name.replace("`", "``") + "`"


def quote_string(value: str) -> str:
    """``value`` as a string literal for a session without NO_BACKSLASH_ESCAPES."""
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
"""What a backslash and this character stand for; before any other one it stands for nothing."""


def with_plain_strings(sql: str) -> str:
    """A user's text with its strings as TiDB restores them: no backslash escapes anything, and quotes are doubled."""
    return text_of([Token(t.kind, _plain(t.text)) if t.kind is TokenKind.STRING else t for t in tokenize(sql)])


def _plain(literal: str) -> str:
    quote = literal[0]
    if "\\" not in literal or not literal.endswith(quote):
        return literal
    escaped = re.compile(rf"\\(.)|{quote * 2}", re.DOTALL)
    value = escaped.sub(lambda found: _ESCAPES.get(found[1], found[1]) if found[1] else quote, literal[1:-1])
    return quote + value.replace(quote, quote * 2) + quote


@dataclass(frozen=True, slots=True)
class QualifiedName:
    """``schema`.`name``; the schema is empty when the text relies on the session's default database."""

    schema: str
    name: str


def read_name(tokens: Sequence[Token], at: int) -> tuple[QualifiedName, int]:
    """The (possibly qualified) name at ``at`` of significant tokens, and the index after it."""
    first = tokens[at].name
    if at + 2 < len(tokens) and tokens[at + 1].text == ".":
        return QualifiedName(first, tokens[at + 2].name), at + 3
    return QualifiedName("", first), at + 1


def rename_pairs(sql: str) -> tuple[tuple[QualifiedName, QualifiedName], ...]:
    """(old, new) of every pair of ``RENAME TABLE a TO b, c TO d``; empty when ``sql`` is another statement."""
    tokens = significant(sql)
    if len(tokens) < 5 or tokens[0].word != "RENAME" or tokens[1].word not in ("TABLE", "TABLES"):
        return ()
    pairs = []
    at = 2
    while at < len(tokens):
        old, at = read_name(tokens, at)
        if at >= len(tokens) or tokens[at].word not in ("TO", "AS"):
            return ()
        new, at = read_name(tokens, at + 1)
        pairs.append((old, new))
        at += 1  # the comma
    return tuple(pairs)
