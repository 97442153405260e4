"""Removes row data from texts for people and logs. Pure.

Promises: everything in a server's message that may be a row value is removed, even if the value contains quotes. Names of columns, keys
and tables stay where the form of the message is known. Of a statement only the text before its first value stays.
"""

import re

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
