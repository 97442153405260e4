"""One table as TiDB describes it in a DDL job's JSON (ddl.md 2), as frozen values.

Promises: pure and picklable; JSON without a key that every TiDB writes raises ``Corruption`` naming that key.
Names keep their original case. Column lists come in ``offset`` order, the order of the target's columns.
"""

import base64
import binascii
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum, IntFlag
from typing import Any, Self

from pyspark_tidb_binlog.schemas.errors import Corruption

PUBLIC = 5
"""The schema state of columns and indexes that are visible to every reader."""

WHOLE_COLUMN = -1
"""``IndexColumn.length`` of an index over the whole column rather than a prefix."""


class ColumnType(IntEnum):
    """``Tp`` of a column: MySQL's type codes (rows.md 2)."""

    UNSPECIFIED = 0
    TINYINT = 1
    SMALLINT = 2
    INT = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    BIGINT = 8
    MEDIUMINT = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    JSON = 245
    DECIMAL = 246
    ENUM = 247
    SET = 248
    TINYBLOB = 249
    MEDIUMBLOB = 250
    LONGBLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


class ColumnFlag(IntFlag):
    """The bits of a column's ``Flag`` that are used here."""

    NOT_NULL = 1 << 0
    PRI_KEY = 1 << 1
    UNIQUE_KEY = 1 << 2
    MULTIPLE_KEY = 1 << 3
    UNSIGNED = 1 << 5
    AUTO_INCREMENT = 1 << 9
    ON_UPDATE_NOW = 1 << 13
    PART_KEY = 1 << 14


class PartitionType(IntEnum):
    """``type`` of a table's partitions."""

    RANGE = 1
    HASH = 2
    LIST = 3
    KEY = 4


class ReferentialAction(IntEnum):
    """What a foreign key does with the rows that refer to a row that is deleted or changed."""

    UNSAID = 0
    RESTRICT = 1
    CASCADE = 2
    SET_NULL = 3
    NO_ACTION = 4
    SET_DEFAULT = 5


# Plain integers: testing enum flags is ten times slower, and these are tested for every value.
_OF_INDEXES = int(ColumnFlag.UNIQUE_KEY | ColumnFlag.MULTIPLE_KEY | ColumnFlag.PART_KEY)
_NOT_NULL, _PRI_KEY, _UNSIGNED = int(ColumnFlag.NOT_NULL), int(ColumnFlag.PRI_KEY), int(ColumnFlag.UNSIGNED)


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """One column."""

    id: int
    name: str
    offset: int
    tp: int
    flag: int
    """As ``ColumnFlag``, without what only repeats that an index has the column: a new index is no change of its columns."""
    flen: int
    """Length, or precision of a DECIMAL; -1 = not given."""
    decimal: int
    """Scale, or fraction digits of a time; -1 = not given."""
    charset: str
    collate: str
    elems: tuple[str, ...]
    """The members of an ENUM or SET, else empty."""
    origin_default: str | int | float | None
    """The column's value in rows written before it existed (rows.md 8)."""
    origin_default_bit: bytes | None
    default: str | int | float | None
    default_bit: bytes | None
    default_is_expr: bool
    generated_expr: str
    generated_stored: bool
    hidden: bool
    state: int
    comment: str
    version: int = 2
    """Version of the column info: below 1 the default of a TIMESTAMP is in the time zone of the TiDB server, from 1 on in UTC."""

    @property
    def unsigned(self) -> bool:
        """Whether the column is UNSIGNED."""
        return self.flag & _UNSIGNED != 0

    @property
    def not_null(self) -> bool:
        """Whether the column is NOT NULL."""
        return self.flag & _NOT_NULL != 0

    @property
    def public(self) -> bool:
        """Whether no DDL on this column is in progress."""
        return self.state == PUBLIC

    @property
    def generated(self) -> bool:
        """Whether the column is computed from others, so that no statement writes it."""
        return self.generated_expr != ""

    @property
    def is_binary(self) -> bool:
        """Whether the charset is ``binary``: raw bytes, not text (numeric types have it too)."""
        return self.charset == "binary"

    def number_of(self, text: str) -> int:
        """The number of an ENUM member, or the bit mask of SET members; ``ValueError`` when the column has no such member."""
        if self.tp == ColumnType.ENUM:
            return self._position(text) + 1
        return sum(1 << self._position(word) for word in {w.casefold() for w in text.split(",")} if word)

    def _position(self, word: str) -> int:
        words = self.elems if word in self.elems else tuple(e.casefold() for e in self.elems)
        wanted = word if word in words else word.casefold()
        if wanted not in words:
            raise ValueError(f"{word!r} is not a member of column {self.name}: {self.elems}")
        return words.index(wanted)

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        """Read one element of ``cols``."""
        kind = json["type"]
        return cls(
            id=json["id"],
            name=json["name"]["O"],
            offset=json["offset"],
            tp=kind["Tp"],
            flag=kind["Flag"] & ~_OF_INDEXES,
            flen=kind["Flen"],
            decimal=kind["Decimal"],
            charset=kind["Charset"],
            collate=kind["Collate"],
            elems=tuple(kind.get("Elems") or ()),
            origin_default=json.get("origin_default"),
            origin_default_bit=_bits(json.get("origin_default_bit")),
            default=json.get("default"),
            default_bit=_bits(json.get("default_bit")),
            default_is_expr=bool(json.get("default_is_expr")),
            generated_expr=json.get("generated_expr_string") or "",
            generated_stored=bool(json.get("generated_stored")),
            hidden=bool(json.get("hidden")),
            state=json["state"],
            comment=json.get("comment") or "",
            version=json.get("version") or 0,
        )


@dataclass(frozen=True, slots=True)
class IndexColumn:
    """One column of an index; ``offset`` is the column's, ``length`` the prefix length or -1."""

    name: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """One index. The primary key is listed only when it is not the integer handle."""

    id: int
    name: str
    columns: tuple[IndexColumn, ...]
    unique: bool
    primary: bool
    state: int
    invisible: bool
    comment: str
    type: int = 0
    """1 = B-tree, 2 = HASH: a word of the statement, which no server heeds; 0 = unknown."""

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        """Read one element of ``index_info``."""
        return cls(
            id=json["id"],
            name=json["idx_name"]["O"],
            columns=tuple(IndexColumn(c["name"]["O"], c["offset"], c["length"]) for c in json["idx_cols"] or ()),
            unique=json["is_unique"],
            primary=json["is_primary"],
            state=json["state"],
            invisible=bool(json.get("is_invisible")),
            comment=json.get("comment") or "",
            type=json.get("index_type") or 0,
        )


@dataclass(frozen=True, slots=True)
class PartitionDef:
    """One partition; ``id`` is the physical table id, which occurs in keys but never in rows."""

    id: int
    name: str
    less_than: tuple[str, ...] = ()
    """The boundary of RANGE, one value per column: a number (where the text had an expression), a quoted literal or MAXVALUE."""
    in_values: tuple[tuple[str, ...], ...] = ()
    """The values of LIST, in the same form; DEFAULT stands for all others."""
    comment: str = ""

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        """Read one element of ``partition.definitions``."""
        return cls(
            id=json["id"],
            name=json["name"]["O"],
            less_than=tuple(json.get("less_than") or ()),
            in_values=tuple(tuple(values) for values in json.get("in_values") or ()),
            comment=json.get("comment") or "",
        )


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """One foreign key."""

    name: str
    columns: tuple[str, ...]
    ref_schema: str = ""
    """Database of the table that it refers to; empty = the table's own."""
    ref_table: str = ""
    ref_columns: tuple[str, ...] = ()
    on_delete: int = 0
    """As ``ReferentialAction``."""
    on_update: int = 0

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        """Read one element of ``fk_info``."""
        return cls(
            name=json["fk_name"]["O"],
            columns=tuple(c["O"] for c in json.get("cols") or ()),
            ref_schema=(json.get("ref_schema") or {}).get("O") or "",
            ref_table=(json.get("ref_table") or {}).get("O") or "",
            ref_columns=tuple(c["O"] for c in json.get("ref_cols") or ()),
            on_delete=json.get("on_delete") or 0,
            on_update=json.get("on_update") or 0,
        )


@dataclass(frozen=True, slots=True)
class TtlInfo:
    """When rows expire."""

    column: str
    interval: str
    """An expression: ``1``."""
    unit: int
    """Of the interval, as TiDB's parser numbers them: 5 = DAY."""
    enabled: bool
    job_interval: str
    """How often rows are looked for: ``1h``."""

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        """Read ``ttl_info``."""
        return cls(json["column"]["O"], json["interval_expr"], json["interval_time_unit"], json["enable"], json.get("job_interval") or "")


@dataclass(frozen=True, slots=True)
class SequenceInfo:
    """The numbers of a sequence."""

    start: int
    increment: int
    min_value: int
    max_value: int
    cache: int
    """How many numbers a server takes at once; 0 = NOCACHE."""
    cycle: bool

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        """Read ``sequence``."""
        return cls(
            start=json.get("sequence_start", 1),
            increment=json.get("sequence_increment", 1),
            min_value=json.get("sequence_min_value", 1),
            max_value=json.get("sequence_max_value", (1 << 63) - 2),
            cache=json.get("sequence_cache_value", 1000) if json.get("sequence_cache", True) else 0,
            cycle=bool(json.get("sequence_cycle")),
        )


@dataclass(frozen=True, slots=True)
class ViewInfo:
    """What a view reads; the names of its columns are those of its ``TableInfo``."""

    select: str
    """As TiDB restores it: with the database of each table, a name for each column, and no escapes in strings."""
    algorithm: int = 0
    """0 = UNDEFINED, 1 = MERGE, 2 = TEMPTABLE."""
    invoker: bool = False
    """SQL SECURITY INVOKER."""
    user: str = ""
    """Of the definer; empty = CURRENT_USER."""
    host: str = ""

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        """Read ``view``. Of a session's own user TiDB stores where it came from, and the account (``Auth…``) that it is."""
        definer = json.get("view_definer") or {}
        account = "Auth" if definer.get("AuthUsername") else ""
        user, host = (definer.get(f"{account}{part}") or "" for part in ("Username", "Hostname"))
        return cls(
            select=json.get("view_select") or "",
            algorithm=json.get("view_algorithm") or 0,
            invoker=json.get("view_security") == 1,
            user=user,
            host=host,
        )


@dataclass(frozen=True, slots=True)
class TableInfo:
    """One table, view or sequence at one schema version."""

    id: int
    name: str
    charset: str
    collate: str
    columns: tuple[ColumnInfo, ...]
    indexes: tuple[IndexInfo, ...]
    pk_is_handle: bool
    """The primary key is one integer column and is the row's handle."""
    is_common_handle: bool
    """The primary key is clustered over other columns and is the row's handle."""
    partitions: tuple[PartitionDef, ...]
    is_view: bool
    is_sequence: bool
    temp_table_type: int
    comment: str
    foreign_keys: tuple[ForeignKey, ...] = ()
    partition_type: int = 0
    """How rows are distributed over ``partitions``, as ``PartitionType``; 0 = not at all."""
    partition_expr: str = ""
    """What is compared with the boundaries, as TiDB writes it: `` `id` ``; empty where ``partition_columns`` are."""
    partition_columns: tuple[str, ...] = ()
    """The columns that are compared with the boundaries: RANGE COLUMNS and LIST COLUMNS."""
    partition_num: int = 0
    """How many partitions HASH and KEY have; TiDB counts those of RANGE and LIST, too."""
    partition_enabled: bool = False
    """False, and there are ``partitions``: TiDB did not partition the table, because its session may not."""
    ttl: TtlInfo | None = None
    sequence: SequenceInfo | None = None
    auto_random_bits: int = 0
    """AUTO_RANDOM: how many bits of the integer handle are random; 0 = none."""
    shard_row_id_bits: int = 0
    """SHARD_ROW_ID_BITS: the same of ``_tidb_rowid``."""
    auto_increment: int = 0
    """Where AUTO_INCREMENT was told to begin; 0 = it was not told."""
    checks: tuple[str, ...] = ()
    """Names of the CHECK constraints."""
    placement: str = ""
    """Name of the placement policy; empty = none."""
    view: ViewInfo | None = None

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        """Read ``binlog.TableInfo`` of a job; ``Corruption`` when it is not one."""
        try:
            return cls._read(json)
        except (KeyError, TypeError, AttributeError) as error:
            where = json.get("id") if isinstance(json, Mapping) else json
            raise Corruption(f"table info of table id {where} in the DDL history cannot be read: {type(error).__name__} {error}") from error

    @classmethod
    def _read(cls, json: Mapping[str, Any]) -> Self:
        partition = json.get("partition") or {}
        columns = sorted((ColumnInfo.from_json(c) for c in json["cols"] or ()), key=lambda c: c.offset)
        return cls(
            id=json["id"],
            name=json["name"]["O"],
            charset=json["charset"],
            collate=json["collate"],
            columns=tuple(columns),
            indexes=tuple(IndexInfo.from_json(i) for i in json["index_info"] or ()),
            pk_is_handle=json["pk_is_handle"],
            is_common_handle=json["is_common_handle"],
            partitions=tuple(PartitionDef.from_json(p) for p in partition.get("definitions") or ()),
            is_view=json.get("view") is not None,
            is_sequence=json.get("sequence") is not None,
            temp_table_type=json.get("temp_table_type") or 0,
            comment=json.get("comment") or "",
            foreign_keys=tuple(ForeignKey.from_json(k) for k in json.get("fk_info") or ()),
            partition_type=partition.get("type") or 0,
            partition_expr=partition.get("expr") or "",
            partition_columns=tuple(c["O"] for c in partition.get("columns") or ()),
            partition_num=partition.get("num") or 0,
            partition_enabled=bool(partition and partition.get("enable", True)),
            ttl=TtlInfo.from_json(json["ttl_info"]) if json.get("ttl_info") else None,
            sequence=SequenceInfo.from_json(json["sequence"]) if json.get("sequence") else None,
            auto_random_bits=json.get("auto_random_bits") or 0,
            shard_row_id_bits=json.get("ShardRowIDBits") or 0,
            auto_increment=json.get("auto_inc_id") or 0,
            checks=tuple(c["constraint_name"]["O"] for c in json.get("constraint_info") or ()),
            placement=((json.get("policy_ref_info") or {}).get("name") or {}).get("O") or "",
            view=ViewInfo.from_json(json["view"]) if json.get("view") else None,
        )

    @property
    def foreign_key_names(self) -> tuple[str, ...]:
        """Names of the foreign keys."""
        return tuple(key.name for key in self.foreign_keys)

    def public_columns(self) -> tuple[ColumnInfo, ...]:
        """Every public column, generated and hidden ones too."""
        return tuple(c for c in self.columns if c.public)

    def target_columns(self) -> tuple[ColumnInfo, ...]:
        """The public columns that are not generated: those that statements name."""
        return tuple(c for c in self.columns if c.public and not c.generated)

    def primary_index(self) -> IndexInfo | None:
        """The public index that is the primary key; None for an integer handle, which has no index."""
        return next((i for i in self.indexes if i.primary and i.state == PUBLIC), None)

    def over_expression(self, index: IndexInfo) -> bool:
        """Whether one of this table's indexes is over an expression, which TiDB stores as a hidden column."""
        return any(c.hidden for c in self.index_columns(index))

    def index_columns(self, index: IndexInfo) -> tuple[ColumnInfo, ...]:
        """The columns of one of this table's indexes, in index order."""
        by_offset = {c.offset: c for c in self.columns}
        try:
            return tuple(by_offset[c.offset] for c in index.columns)
        except KeyError as error:
            raise Corruption(f"index {index.name} of table {self.name} (id {self.id}) names a column offset it lacks: {error}") from error

    def with_only(self, ids: Collection[int]) -> Self:
        """The table with the columns of these ids, and the indexes that consist of them."""
        kept = tuple(replace(c, offset=place) for place, c in enumerate(c for c in self.columns if c.id in ids))
        offsets = {c.id: c.offset for c in kept}
        indexes = list[IndexInfo]()
        for index in self.indexes:
            of_index = [c.id for c in self.index_columns(index)]
            if all(i in offsets for i in of_index):
                parts = (replace(part, offset=offsets[i]) for part, i in zip(index.columns, of_index, strict=True))
                indexes.append(replace(index, columns=tuple(parts)))
        return replace(self, columns=kept, indexes=tuple(indexes))

    def without_partitions(self) -> Self:
        """The table in one piece."""
        return replace(
            self, partitions=(), partition_type=0, partition_expr="", partition_columns=(), partition_num=0, partition_enabled=False
        )

    def partitions_gone(self, after: "TableInfo") -> tuple[str, ...]:
        """The names of the partitions that ``after`` lacks or has under another id: their rows are gone, or in another table."""
        there = {p.id for p in after.partitions}
        return tuple(p.name for p in self.partitions if p.id not in there)

    def handle_columns(self) -> tuple[ColumnInfo, ...]:
        """The columns that form the row's handle, in index order; empty when it is ``_tidb_rowid``."""
        if self.pk_is_handle:
            return tuple(c for c in self.columns if c.flag & _PRI_KEY)[:1]
        index = self.primary_index() if self.is_common_handle else None
        return self.index_columns(index) if index else ()

    def unique_keys(self) -> tuple[tuple[ColumnInfo, ...], ...]:
        """The column lists of the unique keys, the primary key first: no two rows agree in all columns of one, unless a value is NULL.

        A prefix key is listed with its whole columns, which differ wherever the prefixes do. Left out are indexes that are not yet public,
        and those over generated columns, which no row image contains.
        """
        keys = [self.handle_columns()] if self.pk_is_handle else []
        keys += [columns for columns in self._unique_columns() if not _computed(columns)]
        return tuple(key for key in keys if key)

    @property
    def has_computed_key(self) -> bool:
        """Whether any unique key contains a generated column, including the hidden column of an expression index."""
        return any(_computed(columns) for columns in self._unique_columns())

    def _unique_columns(self) -> Iterator[tuple[ColumnInfo, ...]]:
        """The columns of each public unique index, the primary key's first."""
        for index in sorted(self.indexes, key=lambda i: not i.primary):
            if (index.unique or index.primary) and index.state == PUBLIC:
                yield self.index_columns(index)


def _computed(columns: Iterable[ColumnInfo]) -> bool:
    """Whether any of them is missing from row images."""
    return any(c.generated or c.hidden for c in columns)


def _bits(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise Corruption(f"a bit default in the DDL history is not base64: {text!r}") from error
