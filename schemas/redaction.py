"""Removes row data from texts for people and logs. Pure.

Promises: everything in a server's message that may be a row value is removed, even if the value contains quotes. Names of columns, keys
and tables stay where the form of the message is known. Of a statement only the text before its first value stays.
"""

import re

from pyspark_tidb_binlog.schemas.ddl_tokens import Token, TokenKind, text_of, tokenize

HIDDEN = "…"

_NAMES_ONLY = re.compile(
    r"(?:Out of range value for column|Data truncated for column|Data too long for column|Column|Field|Unknown column|Table|Unknown table"
    r"|Unknown database|[A-Z, ]+ command denied to user|Access denied for user|Unknown system variable|Unknown storage engine"
    r"|Invalid default value for|The table|Check constraint|Duplicate column name|Duplicate key name) '[^']*'(?:[^'\"]|n't|'[^']*')*"
)
_OF_A_DEFINITION = re.compile(
    r"(?:Variable|Can't DROP|Key column|Incorrect column specifier for column|BLOB/TEXT column|BLOB, TEXT, GEOMETRY or JSON column|Cannot drop (?:index|column)"
    r"|This version of MySQL doesn't yet support|Failed to generate invisible primary key\. Column|can not get|Unknown collation:|Unknown character set:|Non matching attribute|Unable to create or change a table without a primary key, when the system variable)"
    r" '[^']*'(?:[^'\"]|n't|'[^']*')*"
)
_AROUND_A_VALUE = (
    re.compile(r"(?s)(?P<before>Duplicate entry )'.*'(?P<after> for key '[^']*')"),
    re.compile(r"(?s)(?P<before>Incorrect [\w ()]+ value: )'.*'(?P<after> for (?:column|function) [^\n']*(?:'[^']*'[^']*)?)"),
    re.compile(r"(?s)(?P<before>.*?)['\"].*['\"](?P<after>[^'\"]*)"),
)
_BARE_VALUE = re.compile(r"(?s)(?P<before>.*no partition for value ).*")
_UP_TO_VALUES = re.compile(r" (?:VALUES|WHERE|SET|SELECT) ")
_ROW_VERBS = ("INSERT", "REPLACE", "DELETE", "UPDATE", "SELECT")


def without_values(words: str) -> str:
    """A server's message without row values."""
    if _NAMES_ONLY.fullmatch(words) or _OF_A_DEFINITION.fullmatch(words):
        return words
    for form in _AROUND_A_VALUE:
        if found := form.fullmatch(words):
            return f"{found['before']}'{HIDDEN}'{found['after']}"
    if found := _BARE_VALUE.fullmatch(words):
        return found["before"] + HIDDEN
    return words


def statement_head(sql: str) -> str:
    """The beginning of a statement, up to where values may begin; a DDL contains no row data and is kept."""
    if not sql.lstrip().upper().startswith(_ROW_VERBS):
        return sql
    found = _UP_TO_VALUES.search(sql)
    return sql[: found.end()] + HIDDEN if found else sql.split("(")[0]


_SIZED = frozenset(
    "BIT TINYINT SMALLINT MEDIUMINT INT INTEGER BIGINT DECIMAL DEC NUMERIC FIXED FLOAT DOUBLE REAL CHAR VARCHAR NCHAR NVARCHAR BINARY VARBINARY "
    "TEXT BLOB DATETIME TIMESTAMP TIME YEAR CURRENT_TIMESTAMP NOW".split()
)
"""What a number in brackets is the size of."""
_BARE_BYTES = re.compile(r"0[xXbB][0-9a-fA-F]+")
_BARE = re.compile(r"\w+(?:\.\w+)*")
"""A value without quotes: all in one pass, because a table may have thousands of partitions."""
_SHORTEST = 3
"""Characters of a value from which on it is looked for without its quotes."""
_AFTER_A_KEYWORD = re.compile(
    r"""(?ix)(?P<before>\b(?:DEFAULT|COMMENT|ENUM|SET|VALUES|IN|THAN|BY|AS)\b[\s(=]*)
        (?:\\?'(?:[^']|'')*'|\\?"(?:[^"]|"")*"|-?\d[\d.]*)(?:\s*,\s*(?:\\?'(?:[^']|'')*'|\\?"(?:[^"]|"")*"|-?\d[\d.]*))*"""
)


def ddl_without_values(sql: str) -> str:
    """A DDL's text, as a binlog has it, with its strings, numbers and comments hidden; sizes of types stay."""
    return text_of([Token(token.kind, _hidden(token) if is_value else token.text) for token, is_value in _with_values(sql)])


def words_without_values(words: str, sql: str) -> str:
    """A sentence about the DDL ``sql`` without its values, and without those that a statement in the sentence has for other reasons."""
    values = sorted({token.text for token, is_value in _with_values(sql) if is_value}, key=len, reverse=True)
    words = words.replace(sql, ddl_without_values(sql))
    bare = {value for value in values if _BARE.fullmatch(value) and len(value) >= _SHORTEST}
    words = _BARE.sub(lambda found: HIDDEN if found[0] in bare else found[0], words)
    for value in values:
        if value[0] not in "'\"":
            words = (
                re.sub(rf"(?<![\w.]){re.escape(value)}(?![\w.])", HIDDEN, words) if len(value) >= _SHORTEST and value not in bare else words
            )
            continue
        inner = value[1:-1].replace(value[0] * 2, value[0])
        slashed = inner.replace("\\", "\\\\")
        for spelled in (value[1:-1], inner, repr(inner)[1:-1], slashed.replace("'", "''"), slashed.replace("'", "\\'")):
            for quote in "'\"":
                words = words.replace(f"{quote}{spelled}{quote}", f"{quote}{HIDDEN}{quote}")
            words = words.replace(spelled, HIDDEN) if len(spelled) >= _SHORTEST else words
    return _AFTER_A_KEYWORD.sub(rf"\g<before>{HIDDEN}", words)


def _with_values(sql: str) -> list[tuple[Token, bool]]:
    """Each token, and whether it is a value or may hold one."""
    found, last, sized = list[tuple[Token, bool]](), "", False
    for token in tokenize(sql, backslash_escapes=False):
        number = token.kind is TokenKind.NUMBER or _BARE_BYTES.fullmatch(token.text) is not None
        found.append((token, token.kind in (TokenKind.STRING, TokenKind.COMMENT) or (number and not sized)))
        if token.text == "(":
            sized = last in _SIZED or last == "`"
        elif token.text == ")":
            sized = False
        if not token.blank:
            last = "`" if token.kind is TokenKind.NAME else token.word
    return found


def _hidden(token: Token) -> str:
    return f"{token.text[0]}{HIDDEN}{token.text[0]}" if token.kind is TokenKind.STRING else HIDDEN
