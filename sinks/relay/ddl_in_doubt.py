"""DDLs in a replay that does not know whether they were executed: what their text says about a second execution. Pure.

A real Drainer applies all rows before a DDL first, and saves its checkpoint at once after the DDL (drainer.md 6). So only the first DDL behind its
checkpoint may have been executed. If it was, the target already has the rows before it, in the form that the DDL gave them. For most DDLs it is safe to
write these rows again and to execute the DDL again.

Promises: names the DDLs for which this is wrong, and the columns that rows from before the DDL do not have.
"""

from collections.abc import Collection

from pyspark_tidb_binlog.schemas.ddl_tokens import rename_pairs
from pyspark_tidb_binlog.sinks.mysql.text_ddl.repeated import alter_clauses, column_at, names_of


def why_not_twice(query: str) -> str:
    """In words why the DDL must not be executed a second time; empty: it may."""
    if len(rename_pairs(query)) > 1:
        return "it renames several tables, and a second time it may give a table another's name"
    if any([t.word for t in clause[:2]] == ["EXCHANGE", "PARTITION"] for clause in alter_clauses(query)):
        return "a second EXCHANGE PARTITION would put the rows back"
    return ""


def why_not_rows(query: str, worded: Collection[str]) -> str:
    """Why rows from before the DDL must not be written after it, in words; empty: they may.

    Args:
        query: its text.
        worded: columns, in lower case, for which such a row holds the number of a word (ENUM, SET).
    """
    for clause in alter_clauses(query):
        spoken = [t.word for t in clause]
        if spoken[0] == "CHANGE" or spoken[:2] == ["RENAME", "COLUMN"]:
            return "it renames a column, and the rows before it are recorded under the old name"
        name, *kind = clause[column_at(clause) :][:2] or clause[:1]
        if spoken[0] == "MODIFY" and (name.name.lower() in worded or any(t.word in ("ENUM", "SET") for t in kind)):
            return "it changes the words of an ENUM or SET, and the rows before it are recorded by the old numbers of these words"
    return ""


def added_columns(query: str) -> frozenset[str]:
    """Columns, in lower case, that the DDL adds: rows before it have NULL, or nothing, for them."""
    names = (name for clause in alter_clauses(query) if clause[0].word == "ADD" for name in names_of(clause))
    return frozenset(name.name.lower() for name in names if name.kind == "column")
