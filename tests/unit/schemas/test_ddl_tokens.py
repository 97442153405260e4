"""Tokens of DDL text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tidb_binlog.schemas.ddl_tokens import (
    QualifiedName,
    TokenKind,
    quote_name,
    quote_string,
    rename_pairs,
    significant,
    text_of,
    tokenize,
    with_plain_strings,
)


@given(st.text("ab'\"`\\/*!T[]-# \n;().,=1_@é", max_size=40), st.booleans())
def test_lossless(sql: str, escapes: bool) -> None:
    assert text_of(tokenize(sql, backslash_escapes=escapes)) == sql


@pytest.mark.parametrize(
    ("sql", "kinds"),
    [
        ("`a``b`", [TokenKind.NAME]),
        ("'a''b\\'c'", [TokenKind.STRING]),
        ("1.5e3", [TokenKind.NUMBER]),
        ("1abc", [TokenKind.WORD]),
        ("/* x */", [TokenKind.COMMENT]),
        ("-- x", [TokenKind.COMMENT]),
        ("/*T![ttl] a */", [TokenKind.FEATURE_OPEN, TokenKind.SPACE, TokenKind.WORD, TokenKind.SPACE, TokenKind.FEATURE_CLOSE]),
        ("/*!50100 a */", [TokenKind.FEATURE_OPEN, TokenKind.SPACE, TokenKind.WORD, TokenKind.SPACE, TokenKind.FEATURE_CLOSE]),
        ("a=b", [TokenKind.WORD, TokenKind.SIGN, TokenKind.WORD]),
    ],
)
def test_kinds(sql: str, kinds: list[TokenKind]) -> None:
    assert [t.kind for t in tokenize(sql)] == kinds


def test_a_backslash_ends_no_string_in_restored_text() -> None:
    assert [t.text for t in tokenize("'C:\\', 'x'", backslash_escapes=False) if t.kind is TokenKind.STRING] == ["'C:\\'", "'x'"]


def test_only_bare_words_are_keywords() -> None:
    assert [t.word for t in significant("Create `table` 'x' (/* y */);")] == ["CREATE", "", "", "(", ")"]


@pytest.mark.parametrize(
    ("sql", "pairs"),
    [
        ("RENAME TABLE `a` TO `b`", [("", "a", "", "b")]),
        ("rename tables a.b to `c`.`d``e`, x to y;", [("a", "b", "c", "d`e"), ("", "x", "", "y")]),
        ('rename table "a" to b', [("", "a", "", "b")]),
        ("RENAME TABLE `a`", []),
        ("RENAME USER a TO b", []),
        ("ALTER TABLE a RENAME TO b", []),
    ],
)
def test_rename_pairs(sql: str, pairs: list[tuple[str, str, str, str]]) -> None:
    assert rename_pairs(sql) == tuple((QualifiedName(a, b), QualifiedName(c, d)) for a, b, c, d in pairs)


@given(st.text(max_size=20))
def test_quoting_round_trips(text: str) -> None:
    (name,) = tokenize(quote_name(text))
    assert name.name == text
    assert [t.kind for t in tokenize(quote_string(text))] == [TokenKind.STRING]


def test_a_users_strings_become_those_of_a_restored_text() -> None:
    """Read without escapes they have the same values: what a binlog, a file or a topic holds is read so."""
    for written, plain in (
        (r"'a\\b'", r"'a\b'"),
        (r"'it\'s'", "'it''s'"),
        (r"'it\''''", "'it'''''"),
        (r"'\\''x'", r"'\''x'"),
        (r'"say \"it\" \n"', '"say ""it"" \n"'),
        (r"'50\% \_ \q'", r"'50\% \_ q'"),
        ("'it''s'", "'it''s'"),
    ):
        made = with_plain_strings(f"ALTER TABLE `a\\b` ADD c VARCHAR(9) DEFAULT {written}, ADD d INT -- x\\y")
        assert made == f"ALTER TABLE `a\\b` ADD c VARCHAR(9) DEFAULT {plain}, ADD d INT -- x\\y"
        assert text_of([t for t in tokenize(made, backslash_escapes=False) if t.kind is TokenKind.STRING]) == plain
