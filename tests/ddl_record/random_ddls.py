"""DDL jobs drawn from a seed, as a TiDB makes them: the statement in its parser's restored form, and the table's info after the job.

Promises: the same seed gives the same jobs. A statement is one that TiDB takes, but for what depends on rows: the target's are others than the upstream's.
"""

import base64
import copy
import random
import re
from collections.abc import Callable
from typing import Any

from pyspark_tidb_binlog.jobs.lab.emulator import schema
from pyspark_tidb_binlog.jobs.lab.emulator.schema import Column, Json, name_json, part_text, with_columns
from pyspark_tidb_binlog.schemas.ddl_jobs import JobType
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_name as q
from pyspark_tidb_binlog.schemas.ddl_tokens import quote_string
from pyspark_tidb_binlog.schemas.tableinfo import ColumnFlag
from tests.support import ddl_jobs

FIRST_TS = 1_767_323_045_000 << 18
"""2026-01-02 03:04:05."""
SECOND = 1000 << 18
KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("int", ("7", "-1")), ("int", ("0",)), ("bigint unsigned", ("18446744073709551615",)), ("tinyint(1)", ("1",)), ("smallint", ("0",)),
    ("mediumint unsigned", ("5",)), ("decimal(10,2)", ("1.50",)), ("double", ("2.5",)), ("float", ("0.25",)), ("bit(8)", ("\x05",)),
    ("year", ("2024",)), ("date", ("2026-01-02",)), ("time(2)", ("10:11:12.13",)), ("datetime", ("2026-01-02 03:04:05", "CURRENT_TIMESTAMP")),
    ("timestamp(3)", ("CURRENT_TIMESTAMP(3)", "2026-01-02 03:04:05.678")), ("char(10)", ("a",)), ("varchar(20)", ("ü",)),
    ("varchar(20)", ("it's", "")), ("text", ()), ("json", ()), ("varbinary(8)", ("ab",)), ("binary(4)", ()), ("blob", ()),
    ("enum('a','it''s')", ("a", "it's")), ("set('x','y')", ("x,y",)),
)  # fmt: skip
"""Types, with defaults as the info has them."""
MODIFIED = {
    "int": ("bigint", "+varchar(20)", "+decimal(20,3)", "+smallint"), "bigint": ("+decimal(30,2)", "+int unsigned"), "tinyint(1)": ("int",),
    "smallint": ("int",), "mediumint unsigned": ("int unsigned",), "decimal(10,2)": ("+decimal(14,4)", "+double"), "double": ("+varchar(40)",),
    "date": ("+datetime", "+varchar(20)"), "datetime": ("+date", "+timestamp", "+datetime(3)"), "timestamp(3)": ("+datetime",),
    "time(2)": ("+char(20)", "+varchar(20)"), "char(10)": ("char(20)", "+varchar(10)"), "varchar(20)": ("varchar(40)", "+char(20)", "+varchar(5)"),
    "text": ("mediumtext",), "blob": ("longblob",), "varbinary(8)": ("varbinary(20)", "+blob"), "set('x','y')": ("set('x','y','z')",),
    "enum('a','it''s')": ("enum('a','it''s','c')", "+varchar(20)"), "bit(8)": ("+bit(16)",), "bigint unsigned": ("+varchar(20)",),
}  # fmt: skip
"""What MODIFY makes of a type; with a plus the column is converted, and gets a new id."""
CHARSETS = (
    ("utf8mb4", "utf8mb4_general_ci"), ("utf8mb4", "utf8mb4_unicode_ci"), ("utf8", "utf8_bin"), ("latin1", "latin1_bin"), ("ascii", "ascii_bin"),
    ("gbk", "gbk_bin"),
)  # fmt: skip
TEXTUAL = ("char", "varchar", "tinytext", "text", "mediumtext", "enum", "set")
Clause = tuple[JobType, str, Json]


def named(items: Any, name: str, key: str = "name") -> Json:
    """The one of this name."""
    return next(item for item in items if item[key]["O"] == name)


def definition(column: Json, info: Json) -> str:
    """A column as SQL."""
    kind, type_ = column["kind"], column["type"]
    parts = [q(column["name"]["O"]), re.sub(r"^[a-z]+| unsigned", lambda m: m[0].upper(), kind)]
    if type_["Charset"] != "binary" and (type_["Charset"], type_["Collate"]) != (info["charset"], info["collate"]):
        parts.append(f"CHARACTER SET {type_['Charset'].upper()} COLLATE {type_['Collate']}")
    if column["generated_expr_string"]:
        parts.append(f"GENERATED ALWAYS AS({column['generated_expr_string']}) {'STORED' if column['generated_stored'] else 'VIRTUAL'}")
    parts += ["NOT NULL"] * bool(type_["Flag"] & ColumnFlag.NOT_NULL) + ["AUTO_INCREMENT"] * bool(type_["Flag"] & ColumnFlag.AUTO_INCREMENT)
    if column["default"] is not None:
        parts.append(f"DEFAULT {default_text(column)}")
    if type_["Flag"] & ColumnFlag.ON_UPDATE_NOW:
        parts.append(f"ON UPDATE {default_text(column)}")
    return " ".join([*parts, *([f"COMMENT {quote_string(column['comment'])}"] if column["comment"] else [])])


def default_text(column: Json) -> str:
    """A default as SQL."""
    value, kind = column["default"], column["kind"]
    if value.startswith("CURRENT_TIMESTAMP"):
        return value if value.endswith(")") else value + "()"
    if kind.startswith("bit"):
        return f"b'{ord(value):b}'"
    number = kind.startswith(("int", "bigint", "tinyint", "smallint", "mediumint", "decimal", "double", "float", "year"))
    return value if number else "_UTF8MB4" + quote_string(value)


def index_text(index: Json, info: Json) -> str:
    """An index as SQL, without its verb."""
    by_name = {c["name"]["O"]: c for c in info["cols"]}
    parts = [
        f"({by_name[p['name']['O']]['generated_expr_string']})" if by_name[p["name"]["O"]]["hidden"]
        else part_text(p["name"]["O"] + (f"({p['length']})" if p["length"] > 0 else ""))
        for p in index["idx_cols"]
    ]  # fmt: skip
    return f"{q(index['idx_name']['O'])}({', '.join(parts)})" + " INVISIBLE" * index["is_invisible"]


def partition_text(partition: Json) -> str:
    """PARTITION BY, with a leading blank."""
    method = {1: "RANGE", 2: "HASH", 3: "LIST", 4: "KEY"}[partition["type"]]
    columns = [q(c["O"]) for c in partition["columns"] or ()]
    over = f"{method} COLUMNS (`id`)" if columns and method != "KEY" else f"{method} (`id`)"
    if method in ("HASH", "KEY"):
        return f" PARTITION BY {over} PARTITIONS {partition['num']}"
    return f" PARTITION BY {over} ({','.join(map(part_definition, partition['definitions']))})"


def part_definition(part: Json) -> str:
    """One partition of RANGE or LIST."""
    values = f"LESS THAN ({part['less_than'][0]})" if part["less_than"] else f"IN ({', '.join(v[0] for v in part['in_values'])})"
    return f"PARTITION {q(part['name']['O'])} VALUES {values}"


def create_text(info: Json, collate: str = "") -> str:
    """CREATE TABLE; ``collate``: what the database gives it anyway."""
    parts = [definition(c, info) for c in info["cols"] if not c["hidden"]]
    keys = [c["name"]["O"] for c in info["cols"] if c["type"]["Flag"] & ColumnFlag.PRI_KEY]
    if keys:
        clustered = info["pk_is_handle"] or info["is_common_handle"]
        parts.append(f"PRIMARY KEY({', '.join(map(q, keys))}) /*T![clustered_index] {'CLUSTERED' if clustered else 'NONCLUSTERED'} */")
    parts += [f"{'UNIQUE' if i['is_unique'] else 'INDEX'} {index_text(i, info)}" for i in info["index_info"] if not i["is_primary"]]
    options = (
        ""
        if info["collate"] == collate
        else f" DEFAULT CHARACTER SET = {info['charset'].upper()} DEFAULT COLLATE = {info['collate'].upper()}"
    )
    options += f" COMMENT = {quote_string(info['comment'])}" if info["comment"] else ""
    return (
        f"CREATE TABLE {q(info['name']['O'])} ({','.join(parts)}){options}{partition_text(info['partition']) if info['partition'] else ''}"
    )


class Tidb:
    """Its tables, and the jobs that made them so."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.jobs: list[Json] = []
        self.texts: dict[int, str] = {}
        self.tables: dict[int, tuple[str, Json]] = {}
        self.views: dict[str, int] = {}
        self.databases = {"d": 501, "Other": 502}
        self.collate = dict.fromkeys(self.databases, "utf8mb4_bin")
        self._number = 1000
        for db, schema_id in self.databases.items():
            self._write(JobType.CREATE_SCHEMA, f"CREATE DATABASE {q(db)}", db, db_info=schema.database_json(db, schema_id))

    def next(self) -> int:
        """A number that nothing has yet."""
        self._number += 1
        return self._number

    def _write(self, kind: JobType, text: str, db: str, info: Json | None = None, db_info: Json | None = None, **more: Any) -> None:
        number = len(self.jobs) + 1
        more = {"table_name": info["name"]["O"] if info else "", **more}
        job = ddl_jobs.job(
            number, int(kind), copy.deepcopy(info), db=db_info, schema_id=self.databases[db], schema_name=db, query=text, **more
        )
        job["binlog"]["FinishedTS"], job["start_ts"] = FIRST_TS + number * SECOND, FIRST_TS + number * SECOND - SECOND // 2
        self.jobs.append(job)
        self.texts[number] = text + ";"

    def draw(self) -> None:
        """One statement; where what was chosen has no table to work on, another one."""
        before = len(self.jobs)
        while len(self.jobs) == before:
            if len(self.tables) < 2 or (self.rng.random() < 0.1 and len(self.tables) < 5):
                self._create()
            elif self.rng.random() < 0.65:
                self._alter()
            else:
                self.rng.choice(WHOLE)(self)

    def _some(self, wanted: Callable[[Json], Any] = lambda _: True) -> tuple[str, Json] | None:
        found = [t for t in self.tables.values() if wanted(t[1])]
        return self.rng.choice(found) if found else None

    def _column(self, name: str, column_id: int, info: Json, kind: str = "", default: str | None = "?", *, added: bool = False) -> Json:
        """A column, drawn but for what is given."""
        chosen, defaults = self.rng.choice(KINDS)
        if kind:
            chosen, defaults = kind, next((d for k, d in KINDS if k == kind), ())
        if default == "?":
            default = self.rng.choice(defaults) if defaults and self.rng.random() < 0.5 else None
        column = schema.column_json(Column(name, chosen, self.rng.random() < 0.3), column_id, 0) | {"kind": chosen, "default": default}
        type_ = column["type"]
        if chosen in ("double", "float"):
            type_["Decimal"] = -1
        if chosen.startswith(TEXTUAL):
            own = self.rng.choice(CHARSETS) if self.rng.random() < 0.15 else (info["charset"], info["collate"])
            type_["Charset"], type_["Collate"] = own if default is None or default.isascii() else ("utf8mb4", "utf8mb4_bin")
        column["default_bit"] = base64.b64encode(default.encode()).decode() if default and chosen.startswith("bit") else None
        if default and default.startswith("CURRENT") and self.rng.random() < 0.5:
            type_["Flag"] |= int(ColumnFlag.ON_UPDATE_NOW)
        column["comment"] = "it's \\ ü" if self.rng.random() < 0.1 else ""
        if added:
            column["origin_default"], column["origin_default_bit"] = origin(column), column["default_bit"]
        return column

    def _generated(self, name: str, column_id: int, info: Json, *, stored: bool) -> Json | None:
        base = next((c for c in info["cols"] if c["kind"] == "int" and c["name"]["O"] != "id" and not c["generated_expr_string"]), None)
        if base is None:
            return None
        column = schema.column_json(Column(name, "bigint"), column_id, 0)
        return column | {"kind": "bigint", "generated_expr_string": f"{q(base['name']['O'])} + 1", "generated_stored": stored}

    def _create(self) -> None:
        rng, db, table_id = self.rng, self.rng.choice(("d", "d", "Other")), self.next()
        info: Json = {
            "id": table_id, "name": name_json(f"{rng.choice(('t', 'Orders', 'a b', 'we`ird-名'))}{table_id}"), "charset": "utf8mb4", "collate": self.collate[db],
            "cols": [], "index_info": [], "fk_info": [], "state": 5, "pk_is_handle": False, "is_common_handle": False, "comment": "", "max_col_id": 0,
            "max_idx_id": 0, "max_fk_id": 0, "partition": None, "view": None, "sequence": None, "temp_table_type": 0,
        }  # fmt: skip
        if rng.random() < 0.2:
            info["charset"], info["collate"] = rng.choice(CHARSETS)
        info["comment"] = "it's" if rng.random() < 0.2 else ""
        key = rng.choice(("handle", "handle", "auto", "common", "nonclustered", "none"))
        first = schema.column_json(Column("id", "int", True), 1, 0) | {"kind": "int"}
        columns = [first, *(self._column(f"{rng.choice('cC')}{n}", n, info) for n in range(2, rng.randint(3, 7)))]
        if rng.random() < 0.25:
            info["cols"] = columns
            columns += filter(None, [self._generated("g", len(columns) + 1, info, stored=rng.random() < 0.5)])
        keys = [] if key == "none" else [first]
        if key == "common":
            keys += [
                c for c in columns[1:] if c["kind"].startswith(("int", "bigint", "varchar", "date")) and not c["generated_expr_string"]
            ][:1]
        for column in keys:
            column["type"]["Flag"] |= int(ColumnFlag.PRI_KEY | ColumnFlag.NOT_NULL)
        if key == "auto":
            first["type"]["Flag"] |= int(ColumnFlag.AUTO_INCREMENT)
        info = with_columns(info, columns)
        info["pk_is_handle"] = key in ("handle", "auto") or (key == "common" and len(keys) == 1)
        info["is_common_handle"] = key == "common" and len(keys) > 1
        if keys and not info["pk_is_handle"]:
            self._put_index(info, "PRIMARY", [c["name"]["O"] for c in keys], unique=True, primary=True)
        if info["pk_is_handle"] and rng.random() < 0.4 and key != "auto":
            info["partition"] = self._partition()
        for _ in range(rng.choice((0, 1, 1, 2))):
            if made := self._add_index(info, set()):
                info = made[2]
        self.tables[table_id] = (db, info)
        self._write(JobType.CREATE_TABLE, create_text(info, self.collate[db]), db, info)

    def _put_index(self, info: Json, name: str, columns: list[str], *, unique: bool = False, primary: bool = False) -> Json:
        info["max_idx_id"] += 1
        by_name = {c["name"]["O"]: c for c in info["cols"]}
        index = schema.index_json(info["max_idx_id"], name, columns, by_name, unique=unique, primary=primary)
        info["index_info"].append(index)
        return index

    def _partition(self) -> Json:
        kind, columns = self.rng.choice(((1, False), (1, True), (2, False), (3, False), (4, True)))
        parts: list[Json] = [{"id": self.next(), "name": name_json(f"p{n}"), "less_than": None, "in_values": None} for n in range(3)]
        for n, part in enumerate(parts):
            part["less_than"] = [("0", "1000", "2000000000")[n]] if kind == 1 else None
            part["in_values"] = [[str(v)] for v in range(n * 4, n * 4 + 4)] if kind == 3 else None
        named_ = [name_json("id")] if columns else None
        return {"type": kind, "expr": "" if columns else "`id`", "columns": named_, "enable": True, "definitions": parts, "num": 3}

    def _alter(self) -> None:
        """ALTER TABLE of one clause, or of some that do not meet in a column."""
        chosen = self._some()
        assert chosen is not None
        (db, info), used, clauses = chosen, set[str](), list[Clause]()
        for _ in range(self.rng.choice((1, 1, 1, 1, 2, 3))):
            if made := self.rng.choice(CLAUSES)(self, copy.deepcopy(info), used):
                clauses.append(made)
                info = made[2]
        if clauses:
            self._altered(
                clauses[0][0] if len(clauses) == 1 else JobType.MULTI_SCHEMA_CHANGE, db, info, ", ".join(c[1] for c in clauses), clauses
            )

    def _altered(self, kind: JobType, db: str, info: Json, text: str, clauses: list[Clause] | None = None) -> None:
        parts = (
            {"sub_jobs": [{"type": int(c[0]), "schema_version": 0} for c in clauses or ()]} if kind == JobType.MULTI_SCHEMA_CHANGE else None
        )
        self.tables[info["id"]] = (db, info)
        self._write(kind, f"ALTER TABLE {q(info['name']['O'])} {text}", db, info, multi_schema_info=parts)

    def _free(self, info: Json, used: set[str]) -> list[Json]:
        """The columns that nothing but indexes depends on."""
        exprs = " ".join(c["generated_expr_string"] for c in info["cols"])
        keyed = {c["O"] for k in info["fk_info"] for c in k["cols"]} | used
        fixed = int(ColumnFlag.PRI_KEY)
        found = [c for c in info["cols"] if c["name"]["O"] != "id" and not c["generated_expr_string"] and not c["type"]["Flag"] & fixed]
        return [c for c in found if c["name"]["O"] not in keyed and q(c["name"]["O"]) not in exprs]

    def _place(self, info: Json, used: set[str]) -> tuple[str, int]:
        """FIRST or AFTER, and the offset; mostly none, at the end."""
        if self.rng.random() < 0.6:
            return "", -1
        others = [c for c in info["cols"] if c["name"]["O"] not in used and not c["hidden"]]
        after = self.rng.choice(others) if others and self.rng.random() < 0.7 else None
        used |= {after["name"]["O"]} if after else set()
        return (f" AFTER {q(after['name']['O'])}", after["offset"] + 1) if after else (" FIRST", 0)

    def _add_column(self, info: Json, used: set[str]) -> Clause | None:
        name, column_id = f"{self.rng.choice('nN')}{self.next()}", info["max_col_id"] + 1
        made = (
            self._generated(name, column_id, info, stored=False)
            if self.rng.random() < 0.1
            else self._column(name, column_id, info, added=True)
        )
        if made is None:
            return None
        text, at = self._place(info, used)
        used.add(name)
        visible = sum(not c["hidden"] for c in info["cols"])
        columns = info["cols"]
        columns.insert(visible if at < 0 else at, made)
        return JobType.ADD_COLUMN, f"ADD COLUMN {definition(made, info)}{text}", with_columns(info, columns)

    def _drop_column(self, info: Json, used: set[str]) -> Clause | None:
        together = {p["name"]["O"] for i in info["index_info"] if len(i["idx_cols"]) > 1 for p in i["idx_cols"]}
        found = [c for c in self._free(info, used) if c["name"]["O"] not in together]
        if not found or len(info["cols"]) < 4:
            return None
        name = self.rng.choice(found)["name"]["O"]
        used.add(name)
        info["index_info"] = [i for i in info["index_info"] if i["idx_cols"][0]["name"]["O"] != name]
        return JobType.DROP_COLUMN, f"DROP COLUMN {q(name)}", with_columns(info, [c for c in info["cols"] if c["name"]["O"] != name])

    def _modify_column(self, info: Json, used: set[str]) -> Clause | None:
        found = self._free(info, used)
        if not found:
            return None
        old = self.rng.choice(found)
        name = old["name"]["O"]
        indexed = any(p["name"]["O"] == name for i in info["index_info"] for p in i["idx_cols"])
        kinds = [k for k in (*MODIFIED.get(old["kind"], ()), old["kind"]) if not (indexed and k.startswith("+"))]
        kind = self.rng.choice(kinds)
        keeps = kind == old["kind"] and self.rng.random() < 0.5
        new_name = f"r{self.next()}" if self.rng.random() < 0.25 else name
        made = self._column(new_name, old["id"], info, kind.lstrip("+"), old["default"] if keeps else "?")
        if made["type"]["Charset"] != "binary" and old["type"]["Charset"] != "binary":
            made["type"]["Charset"], made["type"]["Collate"] = old["type"]["Charset"], old["type"]["Collate"]
            if not (made["default"] or "").isascii() and not old["type"]["Charset"].startswith("utf8"):
                made["default"] = None
        made |= {k: old[k] for k in ("origin_default", "origin_default_bit")} | (
            {"id": info["max_col_id"] + 1} if kind.startswith("+") else {}
        )
        used |= {name, new_name}
        text, at = self._place({**info, "cols": [c for c in info["cols"] if c["name"]["O"] != name]}, used)
        verb = f"CHANGE COLUMN {q(name)}" if new_name != name or self.rng.random() < 0.1 else "MODIFY COLUMN"
        return JobType.MODIFY_COLUMN, f"{verb} {definition(made, info)}{text}", self._replaced(info, old, made, at)

    def _replaced(self, info: Json, old: Json, made: Json, at: int = -1) -> Json:
        columns = info["cols"]
        place = next(n for n, c in enumerate(columns) if c["id"] == old["id"])
        del columns[place]
        columns.insert(place if at < 0 else at - (at > place), made)
        for part in (p for i in info["index_info"] for p in i["idx_cols"] if p["name"]["O"] == old["name"]["O"]):
            part["name"] = made["name"]
        return with_columns(info, columns)

    def _rename_column(self, info: Json, used: set[str]) -> Clause | None:
        found = self._free(info, used)
        if not found:
            return None
        old, new = self.rng.choice(found), f"R{self.next()}"
        used |= {old["name"]["O"], new}
        return (
            JobType.MODIFY_COLUMN,
            f"RENAME COLUMN {q(old['name']['O'])} TO {q(new)}",
            self._replaced(info, old, {**old, "name": name_json(new)}),
        )

    def _set_default(self, info: Json, used: set[str]) -> Clause | None:
        found = [c for c in self._free(info, used) if dict(KINDS).get(c["kind"]) and not c["type"]["Flag"] & ColumnFlag.ON_UPDATE_NOW]
        if not found:
            return None
        column = self.rng.choice(found)
        values = [v for v in dict(KINDS)[column["kind"]] if v.isascii() and not v.startswith("CURRENT")]
        column["default"] = self.rng.choice(values) if values and self.rng.random() < 0.7 else None
        column["default_bit"] = (
            base64.b64encode(column["default"].encode()).decode() if column["default"] and column["kind"].startswith("bit") else None
        )
        used.add(column["name"]["O"])
        verb = f"SET DEFAULT {default_text(column)}" if column["default"] is not None else "DROP DEFAULT"
        return JobType.SET_DEFAULT, f"ALTER COLUMN {q(column['name']['O'])} {verb}", info

    def _add_index(self, info: Json, used: set[str]) -> Clause | None:
        found = [c for c in info["cols"] if c["kind"] not in ("json",) and not c["hidden"] and c["name"]["O"] not in used]
        if not found:
            return None
        chosen = self.rng.sample(found, min(len(found), self.rng.choice((1, 1, 2, 3))))
        unique = self.rng.random() < 0.3
        if unique and info["partition"] and all(c["name"]["O"] != "id" for c in chosen):
            chosen.append(info["cols"][[c["name"]["O"] for c in info["cols"]].index("id")])
        name, texts = f"i{self.next()}", ("varchar(20)", "varchar(40)", "char(20)")
        if chosen[0]["kind"] in texts and not unique and self.rng.random() < 0.3:
            hidden = schema.column_json(Column(f"_V$_{name}_0", "varchar(20)"), info["max_col_id"] + 1, 0)
            hidden |= {"kind": "varchar(20)", "hidden": True, "generated_expr_string": f"lower({q(chosen[0]['name']['O'])})"}
            info, chosen = with_columns(info, [*info["cols"], hidden]), [hidden]
        long = [
            c["name"]["O"] + ("(5)" if c["kind"].endswith(("text", "blob")) or (c["kind"] in texts and self.rng.random() < 0.2) else "")
            for c in chosen
        ]
        used |= {name, *(c["name"]["O"] for c in chosen)}
        index = self._put_index(info, name, long, unique=unique)
        index["is_invisible"] = not unique and self.rng.random() < 0.1  # TiDB takes no unique one that is a key without NULL
        return JobType.ADD_INDEX, f"ADD {'UNIQUE ' * unique}INDEX {index_text(index, info)}", info

    def _change_index(self, info: Json, used: set[str]) -> Clause | None:
        """DROP INDEX, RENAME INDEX, or its visibility."""
        keyed = {k["fk_name"]["O"] for k in info["fk_info"]} | used
        found = [
            i
            for i in info["index_info"]
            if not i["is_primary"] and not keyed & {i["idx_name"]["O"], *(p["name"]["O"] for p in i["idx_cols"])}
        ]
        if not found:
            return None
        index, way = self.rng.choice(found), self.rng.choice(("drop", "drop", "rename", "show"))
        old, parts, new = index["idx_name"]["O"], {p["name"]["O"] for p in index["idx_cols"]}, f"I{self.next()}"
        used |= {old, new, *parts}
        if way == "drop":
            info["index_info"].remove(index)
            kept = [c for c in info["cols"] if not (c["hidden"] and c["name"]["O"] in parts)]
            return JobType.DROP_INDEX, f"DROP INDEX {q(old)}", with_columns(info, kept)
        if way == "rename" or index["is_unique"]:
            index["idx_name"] = name_json(new)
            return JobType.RENAME_INDEX, f"RENAME INDEX {q(old)} TO {q(new)}", info
        index["is_invisible"] = not index["is_invisible"]
        return JobType.INDEX_VISIBILITY, f"ALTER INDEX {q(old)} {'INVISIBLE' if index['is_invisible'] else 'VISIBLE'}", info

    def _primary_key(self) -> None:
        if (chosen := self._some(lambda i: not i["pk_is_handle"] and not i["is_common_handle"] and not i["fk_info"])) is None:
            return
        db, info = copy.deepcopy(chosen)
        column = named(info["cols"], "id")
        column["type"]["Flag"] ^= int(ColumnFlag.PRI_KEY)
        if column["type"]["Flag"] & ColumnFlag.PRI_KEY:
            column["type"]["Flag"] |= int(ColumnFlag.NOT_NULL)
            self._put_index(info, "PRIMARY", ["id"], unique=True, primary=True)
            return self._altered(JobType.ADD_PRIMARY_KEY, db, info, "ADD PRIMARY KEY(`id`) /*T![clustered_index] NONCLUSTERED */")
        info["index_info"] = [i for i in info["index_info"] if not i["is_primary"]]
        return self._altered(JobType.DROP_PRIMARY_KEY, db, info, "DROP PRIMARY KEY")

    def _referred(self, info: Json) -> bool:
        return any(k["ref_table"]["O"] == info["name"]["O"] for _, other in self.tables.values() for k in other["fk_info"])

    def _foreign_key(self) -> None:
        if (chosen := self._some(lambda i: not i["partition"])) is None:
            return
        db, info = copy.deepcopy(chosen)
        if info["fk_info"]:
            gone = info["fk_info"].pop()["fk_name"]["O"]
            return self._altered(JobType.DROP_FOREIGN_KEY, db, info, f"DROP FOREIGN KEY {q(gone)}")
        parents = [i for d, i in self.tables.values() if d == db and i["pk_is_handle"] and not i["partition"] and i["id"] != info["id"]]
        columns = [c for c in self._free(info, set()) if c["kind"] == "int" and not c["type"]["Flag"] & ColumnFlag.NOT_NULL]
        if not parents or not columns:
            return None
        parent, column, name = self.rng.choice(parents), self.rng.choice(columns)["name"], f"fk_{self.next()}"
        action = self.rng.choice(((0, ""), (2, " ON DELETE CASCADE"), (3, " ON DELETE SET NULL")))
        key = {"id": 1, "fk_name": name_json(name), "ref_schema": name_json(db), "ref_table": parent["name"], "ref_cols": [name_json("id")]}
        info["fk_info"].append(key | {"cols": [column], "on_delete": action[0], "on_update": 0, "state": 5, "version": 1})
        if not any(i["idx_cols"][0]["name"] == column for i in info["index_info"]):
            self._put_index(info, name, [column["O"]])
        text = f"ADD CONSTRAINT {q(name)} FOREIGN KEY ({q(column['O'])}) REFERENCES {q(parent['name']['O'])}(`id`){action[1]}"
        return self._altered(JobType.ADD_FOREIGN_KEY, db, info, text)

    def _option(self) -> None:
        db, info = copy.deepcopy(self._some() or ("", {}))
        if self.rng.random() < 0.4 and not any(
            c["type"]["Charset"] != info["charset"] for c in info["cols"] if c["type"]["Charset"] != "binary"
        ):
            if info["charset"] == "utf8":
                info["charset"], info["collate"] = "utf8mb4", "utf8mb4_bin"
                for column in (c for c in info["cols"] if c["type"]["Charset"] != "binary"):
                    column["type"]["Charset"], column["type"]["Collate"] = "utf8mb4", "utf8mb4_bin"
                return self._altered(JobType.TABLE_CHARSET, db, info, "CONVERT TO CHARACTER SET UTF8MB4 COLLATE UTF8MB4_BIN")
        if self.rng.random() < 0.3 and any(c["type"]["Flag"] & ColumnFlag.AUTO_INCREMENT for c in info["cols"]):
            info["auto_inc_id"] = self.next() * 100
            return self._altered(JobType.REBASE_AUTO_ID, db, info, f"AUTO_INCREMENT = {info['auto_inc_id']}")
        info["comment"] = f"said {self.next()}"
        return self._altered(JobType.TABLE_COMMENT, db, info, f"COMMENT = {quote_string(info['comment'])}")

    def _rename_table(self) -> None:
        if (chosen := self._some(lambda i: not self._referred(i) and not i["fk_info"])) is None:
            return
        db, info = copy.deepcopy(chosen)
        old, to = info["name"]["O"], self.rng.choice(("d", "Other"))
        info["name"] = name_json(f"Renamed{self.next()}")
        self.tables[info["id"]] = (to, info)
        names = (
            [q(old), q(info["name"]["O"])]
            if to == db and self.rng.random() < 0.7
            else [f"{q(db)}.{q(old)}", f"{q(to)}.{q(info['name']['O'])}"]
        )
        text = f"ALTER TABLE {names[0]} RENAME AS {names[1]}" if self.rng.random() < 0.3 else f"RENAME TABLE {names[0]} TO {names[1]}"
        self._write(JobType.RENAME_TABLE, text, to, info, table_name=old)

    def _swap(self) -> None:
        free = [(d, i) for d, i in self.tables.values() if d == "d" and not self._referred(i) and not i["fk_info"]]
        if len(free) < 2:
            return
        (_, a), (_, b) = self.rng.sample(free, 2)
        names, between = (a["name"], b["name"]), name_json(f"x{self.next()}")
        infos = [{**a, "name": between}, {**b, "name": names[0]}, {**a, "name": names[1]}]
        self.tables |= {b["id"]: ("d", infos[1]), a["id"]: ("d", infos[2])}
        x, y, z = q(names[0]["O"]), q(names[1]["O"]), q(between["O"])
        self._write(JobType.RENAME_TABLES, f"RENAME TABLE {x} TO {z}, {y} TO {x}, {z} TO {y}", "d", infos[2], many=copy.deepcopy(infos))

    def _fresh(self, info: Json) -> Json:
        """A copy under ids of its own."""
        made = copy.deepcopy(info) | {"id": self.next(), "auto_inc_id": 0}
        for part in made["partition"]["definitions"] if made["partition"] else ():
            part["id"] = self.next()
        return made

    def _truncate(self) -> None:
        if (chosen := self._some(lambda i: not self._referred(i))) is None:
            return
        db, info = chosen
        del self.tables[info["id"]]
        made = self._fresh(info)
        self.tables[made["id"]] = (db, made)
        self._write(JobType.TRUNCATE_TABLE, f"TRUNCATE TABLE {q(info['name']['O'])}", db, made, table_id=info["id"])

    def _drop(self) -> None:
        if (chosen := self._some(lambda i: not self._referred(i))) is None or len(self.tables) < 4:
            return
        db, info = chosen
        del self.tables[info["id"]]
        self._write(JobType.DROP_TABLE, f"DROP TABLE {q(info['name']['O'])}", db, info)

    def _like(self) -> None:
        if len(self.tables) > 5:
            return
        db, info = self._some() or ("", {})
        made = self._fresh(info) | {"name": name_json(f"Like{self.next()}"), "fk_info": []}
        self.tables[made["id"]] = (db, made)
        self._write(JobType.CREATE_TABLE, f"CREATE TABLE {q(made['name']['O'])} LIKE {q(info['name']['O'])}", db, made)

    def _partitions(self) -> None:
        if (chosen := self._some(lambda i: i["partition"])) is None:
            return
        db, info = copy.deepcopy(chosen)
        partition = info["partition"]
        parts, kind = partition["definitions"], partition["type"]
        at = self.rng.randrange(len(parts))
        name = parts[at]["name"]["O"]
        ways = ["truncate", "exchange"] + ["add", "drop", "reorganize"] * (kind in (1, 3))
        way = self.rng.choice(ways)
        if way == "truncate":
            parts[at]["id"] = self.next()
            self._altered(JobType.TRUNCATE_PARTITION, db, info, f"TRUNCATE PARTITION {q(name)}")
        elif way == "drop" and len(parts) > 1:
            del parts[at]
            self._altered(JobType.DROP_PARTITION, db, info, f"DROP PARTITION {q(name)}")
        elif way == "add":
            number = self.next()
            made = {"id": number, "name": name_json(f"P{number}"), "less_than": [str(2_000_000_000 + number)], "in_values": None}
            made |= {"less_than": None, "in_values": [[str(number)]]} if kind == 3 else {}
            parts.append(made)
            self._altered(JobType.ADD_PARTITION, db, info, f"ADD PARTITION ({part_definition(made)})")
        elif way == "reorganize":
            made = parts[at] | {"id": self.next(), "name": name_json(f"q{self._number}")}
            parts[at] = made
            self._altered(JobType.REORGANIZE_PARTITION, db, info, f"REORGANIZE PARTITION {q(name)} INTO ({part_definition(made)})")
        elif way == "exchange" and kind in (1, 3):
            plain = self._fresh(info) | {"name": name_json(f"Ex{self.next()}"), "partition": None}
            self._write(JobType.CREATE_TABLE, create_text(plain), db, plain)
            plain_id, parts[at]["id"] = plain["id"], plain["id"]
            plain["id"] = named(chosen[1]["partition"]["definitions"], name)["id"]
            self.tables[plain["id"]] = (db, plain)
            text = f"ALTER TABLE {q(info['name']['O'])} EXCHANGE PARTITION {q(name)} WITH TABLE {q(plain['name']['O'])}"
            self.tables[info["id"]] = (db, info)
            self._write(JobType.EXCHANGE_PARTITION, text, db, info, table_id=plain_id, table_name=plain["name"]["O"])

    def _partitioning(self) -> None:
        """Partitioned anew, or not any more: the table gets another id."""
        if (
            chosen := self._some(
                lambda i: (
                    i["pk_is_handle"] and not i["fk_info"] and not self._referred(i) and not any(x["is_unique"] for x in i["index_info"])
                )
            )
        ) is None:
            return
        db, info = copy.deepcopy(chosen)
        old = info["id"]
        del self.tables[old]
        whole = info["partition"] is None
        info |= {"id": self.next(), "partition": self._partition() | {"type": 2, "expr": "`id`", "columns": None} if whole else None}
        for part in info["partition"]["definitions"] if whole else ():
            part |= {"less_than": None, "in_values": None}
        self.tables[info["id"]] = (db, info)
        text = partition_text(info["partition"]).strip() if whole else "REMOVE PARTITIONING"
        kind = JobType.ALTER_PARTITIONING if whole else JobType.REMOVE_PARTITIONING
        self._write(kind, f"ALTER TABLE {q(info['name']['O'])} {text}", db, info, table_id=old)

    def _view(self) -> None:
        name = f"v{len(self.views)}"
        if self.views and self.rng.random() < 0.4:
            name, view_id = self.views.popitem()
            return self._write(JobType.DROP_VIEW, f"DROP VIEW {q(name)}", "d", None, table_id=view_id, table_name=name)
        if (chosen := self._some(lambda i: any(i is info for d, info in self.tables.values() if d == "d"))) is None:
            return None
        info, view_id = chosen[1], self.next()
        column = schema.column_json(Column("id", "int"), 1, 0) | {"kind": "int"}
        view = {
            **info,
            "id": view_id,
            "name": name_json(name),
            "cols": [column],
            "index_info": [],
            "partition": None,
            "fk_info": [],
            "pk_is_handle": False,
        }
        view |= {"is_common_handle": False, "view": {"view_algorithm": 0, "view_select": ""}, "comment": ""}
        self.views[name] = view_id
        made = "CREATE ALGORITHM = UNDEFINED DEFINER = CURRENT_USER SQL SECURITY DEFINER VIEW"
        return self._write(JobType.CREATE_VIEW, f"{made} {q(name)} AS SELECT `id` FROM {q(info['name']['O'])}", "d", view)

    def _database(self) -> None:
        self.collate["d"] = collation = self.rng.choice(("utf8mb4_bin", "utf8mb4_general_ci"))
        info = schema.database_json("d", self.databases["d"]) | {"collate": collation}
        self._write(JobType.SCHEMA_CHARSET, f"ALTER DATABASE `d` CHARACTER SET = utf8mb4 COLLATE = {collation}", "d", db_info=info)


def origin(column: Json) -> str | None:
    """The value that TiDB gives rows which are there when the column is added."""
    default, name = column["default"], column["kind"].split("(")[0].split(" ")[0]
    if default is not None:
        return "2026-01-02 03:04:05" if default.startswith("CURRENT") else str(default)
    if not column["type"]["Flag"] & ColumnFlag.NOT_NULL:
        return None
    zeros = {
        "date": "0000-00-00",
        "datetime": "0000-00-00 00:00:00",
        "timestamp": "0000-00-00 00:00:00",
        "time": "00:00:00",
        "enum": "a",
        "json": "null",
    }
    numbers = ("int", "bigint", "tinyint", "smallint", "mediumint", "decimal", "double", "float", "year")
    return None if name == "bit" else zeros.get(name, "0" if name in numbers else "")


CLAUSES: tuple[Callable[[Tidb, Json, set[str]], Clause | None], ...] = (
    Tidb._add_column, Tidb._add_column, Tidb._drop_column, Tidb._modify_column, Tidb._modify_column, Tidb._modify_column, Tidb._rename_column,
    Tidb._set_default, Tidb._add_index, Tidb._add_index, Tidb._change_index, Tidb._change_index, Tidb._change_index,
)  # fmt: skip
WHOLE: tuple[Callable[[Tidb], None], ...] = (
    Tidb._primary_key, Tidb._foreign_key, Tidb._option, Tidb._rename_table, Tidb._swap, Tidb._truncate, Tidb._drop, Tidb._like, Tidb._partitions,
    Tidb._partitions, Tidb._partitioning, Tidb._view, Tidb._database,
)  # fmt: skip
