"""One finished DDL job, as ``/ddl/history`` returns it (ddl.md 2 and 3), and what its type means.

Promises: pure, frozen, picklable. Unknown job types of later releases are kept as plain numbers and never raise here.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, NamedTuple, Self

from pyspark_tidb_binlog.schemas.errors import Corruption
from pyspark_tidb_binlog.schemas.events import SchemaVersion
from pyspark_tidb_binlog.schemas.tableinfo import TableInfo


class JobType(IntEnum):
    """``type`` of a DDL job."""

    CREATE_SCHEMA = 1
    DROP_SCHEMA = 2
    CREATE_TABLE = 3
    DROP_TABLE = 4
    ADD_COLUMN = 5
    DROP_COLUMN = 6
    ADD_INDEX = 7
    DROP_INDEX = 8
    ADD_FOREIGN_KEY = 9
    DROP_FOREIGN_KEY = 10
    TRUNCATE_TABLE = 11
    MODIFY_COLUMN = 12
    REBASE_AUTO_ID = 13
    RENAME_TABLE = 14
    SET_DEFAULT = 15
    SHARD_ROW_ID = 16
    TABLE_COMMENT = 17
    RENAME_INDEX = 18
    ADD_PARTITION = 19
    DROP_PARTITION = 20
    CREATE_VIEW = 21
    TABLE_CHARSET = 22
    TRUNCATE_PARTITION = 23
    DROP_VIEW = 24
    RECOVER_TABLE = 25
    SCHEMA_CHARSET = 26
    LOCK_TABLE = 27
    UNLOCK_TABLE = 28
    REPAIR_TABLE = 29
    SET_TIFLASH_REPLICA = 30
    TIFLASH_STATUS = 31
    ADD_PRIMARY_KEY = 32
    DROP_PRIMARY_KEY = 33
    CREATE_SEQUENCE = 34
    ALTER_SEQUENCE = 35
    DROP_SEQUENCE = 36
    ADD_COLUMNS = 37
    DROP_COLUMNS = 38
    AUTO_ID_CACHE = 39
    REBASE_AUTO_RANDOM = 40
    INDEX_VISIBILITY = 41
    EXCHANGE_PARTITION = 42
    ADD_CHECK = 43
    DROP_CHECK = 44
    ALTER_CHECK = 45
    RENAME_TABLES = 47
    DROP_INDEXES = 48
    TABLE_ATTRIBUTES = 49
    PARTITION_ATTRIBUTES = 50
    CREATE_PLACEMENT = 51
    ALTER_PLACEMENT = 52
    DROP_PLACEMENT = 53
    PARTITION_PLACEMENT = 54
    SCHEMA_PLACEMENT = 55
    TABLE_PLACEMENT = 56
    CACHE_TABLE = 57
    STATS_OPTIONS = 58
    NOCACHE_TABLE = 59
    CREATE_TABLES = 60
    MULTI_SCHEMA_CHANGE = 61
    FLASHBACK_CLUSTER = 62
    RECOVER_SCHEMA = 63
    REORGANIZE_PARTITION = 64
    SET_TTL = 65
    REMOVE_TTL = 67
    CREATE_RESOURCE_GROUP = 68
    ALTER_RESOURCE_GROUP = 69
    DROP_RESOURCE_GROUP = 70
    ALTER_PARTITIONING = 71
    REMOVE_PARTITIONING = 72


class On(Enum):
    """What a job is about."""

    DATABASE = "database"
    TABLE = "table"
    VIEW = "view"
    SEQUENCE = "sequence"
    CLUSTER = "cluster"


class RowsAfter(Enum):
    """What a job makes of rows that were there, without row changes."""

    STAY = "nothing"
    GO = "all are gone"
    PARTITIONS_GO = "those of partitions are gone"
    EXCHANGED = "those of a partition and those of a table are in each other's place"
    BACK = "those are back that were dropped, and no binlog has them"
    DIVIDED = "they are in other partitions, or in none; those without a clustered key have other _tidb_rowids"


class JobEffect(Enum):
    """What a job does to what it is about, and what that makes of rows."""

    NONE = "changes nothing that a target can hold", RowsAfter.STAY
    MAKES = "makes it", RowsAfter.STAY
    DROPS = "drops it", RowsAfter.GO
    RESTORES = "brings back what was dropped", RowsAfter.BACK
    RENAMES = "gives it another name", RowsAfter.STAY
    ALTERS = "changes columns, keys or options, all of which the table's infos before and after show", RowsAfter.STAY
    SETS = "changes something that the infos do not show", RowsAfter.STAY
    EMPTIES = "takes all rows", RowsAfter.GO
    DROPS_PARTITION = "takes partitions with their rows", RowsAfter.PARTITIONS_GO
    EMPTIES_PARTITION = "takes the rows of partitions", RowsAfter.PARTITIONS_GO
    EXCHANGES = "exchanges the rows of a partition and of a table", RowsAfter.EXCHANGED
    ALTERS_PARTITIONS = "adds partitions, or gives them other names", RowsAfter.STAY
    DIVIDES = "distributes rows over other partitions, or over none", RowsAfter.DIVIDED

    def __init__(self, words: str, rows: RowsAfter) -> None:
        self.rows = rows


class JobKind(NamedTuple):
    """What a type of job means (ddl.md 3 and 4)."""

    on: On
    effect: JobEffect
    new_table_id: bool = False
    """The table of ``table_id`` goes on under the id that ``table_info`` has."""
    recedes: bool = False
    """What it drops goes in steps, each with a schema version: rows are written without it before the job is done."""

    @property
    def makes_tables(self) -> bool:
        """Whether it creates tables, one or several."""
        return self.effect is JobEffect.MAKES and self.on is On.TABLE

    @property
    def rowless(self) -> bool:
        """Whether rows of tables come or go without row changes."""
        return self.on not in (On.VIEW, On.SEQUENCE) and self.effect.rows not in (RowsAfter.STAY, RowsAfter.DIVIDED)


_UNKNOWN = JobKind(On.TABLE, JobEffect.SETS)
KINDS: Mapping[int, JobKind] = {
    JobType.CREATE_SCHEMA: JobKind(On.DATABASE, JobEffect.MAKES),
    JobType.DROP_SCHEMA: JobKind(On.DATABASE, JobEffect.DROPS),
    JobType.CREATE_TABLE: JobKind(On.TABLE, JobEffect.MAKES),
    JobType.DROP_TABLE: JobKind(On.TABLE, JobEffect.DROPS),
    JobType.ADD_COLUMN: JobKind(On.TABLE, JobEffect.ALTERS),
    JobType.DROP_COLUMN: JobKind(On.TABLE, JobEffect.ALTERS, recedes=True),
    JobType.ADD_INDEX: JobKind(On.TABLE, JobEffect.ALTERS),
    JobType.DROP_INDEX: JobKind(On.TABLE, JobEffect.ALTERS, recedes=True),
    JobType.ADD_FOREIGN_KEY: JobKind(On.TABLE, JobEffect.ALTERS),
    JobType.DROP_FOREIGN_KEY: JobKind(On.TABLE, JobEffect.ALTERS),
    JobType.TRUNCATE_TABLE: JobKind(On.TABLE, JobEffect.EMPTIES, new_table_id=True),
    JobType.MODIFY_COLUMN: JobKind(On.TABLE, JobEffect.ALTERS),
    JobType.REBASE_AUTO_ID: JobKind(On.TABLE, JobEffect.ALTERS),
    JobType.RENAME_TABLE: JobKind(On.TABLE, JobEffect.RENAMES),
    JobType.SET_DEFAULT: JobKind(On.TABLE, JobEffect.ALTERS),
    JobType.SHARD_ROW_ID: JobKind(On.TABLE, JobEffect.SETS),
    JobType.TABLE_COMMENT: JobKind(On.TABLE, JobEffect.ALTERS),
    JobType.RENAME_INDEX: JobKind(On.TABLE, JobEffect.ALTERS),
    JobType.ADD_PARTITION: JobKind(On.TABLE, JobEffect.ALTERS_PARTITIONS),
    JobType.DROP_PARTITION: JobKind(On.TABLE, JobEffect.DROPS_PARTITION),
    JobType.CREATE_VIEW: JobKind(On.VIEW, JobEffect.MAKES),
    JobType.TABLE_CHARSET: JobKind(On.TABLE, JobEffect.ALTERS),
    JobType.TRUNCATE_PARTITION: JobKind(On.TABLE, JobEffect.EMPTIES_PARTITION),
    JobType.DROP_VIEW: JobKind(On.VIEW, JobEffect.DROPS),
    JobType.RECOVER_TABLE: JobKind(On.TABLE, JobEffect.RESTORES),
    JobType.SCHEMA_CHARSET: JobKind(On.DATABASE, JobEffect.SETS),
    JobType.LOCK_TABLE: JobKind(On.TABLE, JobEffect.NONE),
    JobType.UNLOCK_TABLE: JobKind(On.TABLE, JobEffect.NONE),
    JobType.SET_TIFLASH_REPLICA: JobKind(On.TABLE, JobEffect.SETS),
    JobType.TIFLASH_STATUS: JobKind(On.TABLE, JobEffect.NONE),
    JobType.ADD_PRIMARY_KEY: JobKind(On.TABLE, JobEffect.ALTERS),
    JobType.DROP_PRIMARY_KEY: JobKind(On.TABLE, JobEffect.ALTERS, recedes=True),
    JobType.CREATE_SEQUENCE: JobKind(On.SEQUENCE, JobEffect.MAKES),
    JobType.ALTER_SEQUENCE: JobKind(On.SEQUENCE, JobEffect.SETS),
    JobType.DROP_SEQUENCE: JobKind(On.SEQUENCE, JobEffect.DROPS),
    JobType.ADD_COLUMNS: JobKind(On.TABLE, JobEffect.ALTERS),
    JobType.DROP_COLUMNS: JobKind(On.TABLE, JobEffect.ALTERS),
    JobType.AUTO_ID_CACHE: JobKind(On.TABLE, JobEffect.SETS),
    JobType.REBASE_AUTO_RANDOM: JobKind(On.TABLE, JobEffect.SETS),
    JobType.INDEX_VISIBILITY: JobKind(On.TABLE, JobEffect.ALTERS),
    JobType.EXCHANGE_PARTITION: JobKind(On.TABLE, JobEffect.EXCHANGES),
    JobType.ADD_CHECK: JobKind(On.TABLE, JobEffect.SETS),
    JobType.DROP_CHECK: JobKind(On.TABLE, JobEffect.SETS),
    JobType.ALTER_CHECK: JobKind(On.TABLE, JobEffect.SETS),
    JobType.RENAME_TABLES: JobKind(On.TABLE, JobEffect.RENAMES),
    JobType.DROP_INDEXES: JobKind(On.TABLE, JobEffect.ALTERS),
    JobType.TABLE_ATTRIBUTES: JobKind(On.TABLE, JobEffect.NONE),
    JobType.PARTITION_ATTRIBUTES: JobKind(On.TABLE, JobEffect.NONE),
    JobType.CREATE_PLACEMENT: JobKind(On.CLUSTER, JobEffect.NONE),
    JobType.ALTER_PLACEMENT: JobKind(On.CLUSTER, JobEffect.NONE),
    JobType.DROP_PLACEMENT: JobKind(On.CLUSTER, JobEffect.NONE),
    JobType.PARTITION_PLACEMENT: JobKind(On.TABLE, JobEffect.NONE),
    JobType.SCHEMA_PLACEMENT: JobKind(On.CLUSTER, JobEffect.NONE),
    JobType.TABLE_PLACEMENT: JobKind(On.TABLE, JobEffect.NONE),
    JobType.CACHE_TABLE: JobKind(On.TABLE, JobEffect.NONE),
    JobType.NOCACHE_TABLE: JobKind(On.TABLE, JobEffect.NONE),
    JobType.STATS_OPTIONS: JobKind(On.TABLE, JobEffect.SETS),
    JobType.CREATE_TABLES: JobKind(On.TABLE, JobEffect.MAKES),
    JobType.MULTI_SCHEMA_CHANGE: JobKind(On.TABLE, JobEffect.ALTERS),
    JobType.FLASHBACK_CLUSTER: JobKind(On.CLUSTER, JobEffect.RESTORES),
    JobType.RECOVER_SCHEMA: JobKind(On.DATABASE, JobEffect.RESTORES),
    JobType.REORGANIZE_PARTITION: JobKind(On.TABLE, JobEffect.DIVIDES),
    JobType.SET_TTL: JobKind(On.TABLE, JobEffect.SETS),
    JobType.REMOVE_TTL: JobKind(On.TABLE, JobEffect.SETS),
    JobType.CREATE_RESOURCE_GROUP: JobKind(On.CLUSTER, JobEffect.NONE),
    JobType.ALTER_RESOURCE_GROUP: JobKind(On.CLUSTER, JobEffect.NONE),
    JobType.DROP_RESOURCE_GROUP: JobKind(On.CLUSTER, JobEffect.NONE),
    JobType.ALTER_PARTITIONING: JobKind(On.TABLE, JobEffect.DIVIDES, new_table_id=True),
    JobType.REMOVE_PARTITIONING: JobKind(On.TABLE, JobEffect.DIVIDES, new_table_id=True),
}
"""By ``JobType``; ``_UNKNOWN``, to a table, are REPAIR_TABLE and types of later releases."""


def kind_of(job_type: int) -> JobKind:
    """What jobs of this type mean."""
    return KINDS.get(job_type, _UNKNOWN)


STATE_DONE = 4
STATE_SYNCED = 6
DELETE_ONLY = 1
"""``ddl_schema_state`` of DROP COLUMN's first binlog."""


@dataclass(frozen=True, slots=True)
class DbInfo:
    """One database."""

    id: int
    name: str
    charset: str
    collate: str

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        """Read ``binlog.DBInfo``."""
        return cls(json["id"], json["db_name"]["O"], json.get("charset") or "", json.get("collate") or "")


@dataclass(frozen=True, slots=True)
class Location:
    """The time zone of the session that issued a DDL."""

    name: str
    """``Asia/Shanghai``; empty for an offset zone and for UTC."""
    offset: int
    """Seconds east of UTC; 0 where ``name`` is set."""


@dataclass(frozen=True, slots=True)
class Job:
    """One finished DDL job."""

    id: int
    type: int
    state: int
    schema_state: int
    schema_id: int
    table_id: int
    schema_name: str
    table_name: str
    query: str
    """The user's own text; what a target executes is the binlog's ``ddl_query``."""
    version: SchemaVersion
    """The schema version at which the result became visible; 0 = never."""
    db_info: DbInfo | None
    table_info: TableInfo | None
    multiple_table_infos: tuple[TableInfo, ...]
    finished_ts: int
    """TSO taken after the DDL binlog's commit_ts (golden cases: 20 to 400 ms after)."""
    start_ts: int = 0
    """TSO taken before the job's first state; 0 = unknown."""
    sub_jobs: tuple[int, ...] = ()
    """Types of the sub-jobs of a multi-schema change."""
    location: Location | None = None
    """None: not recorded in the job; TiDB records it only for jobs that read rows."""
    sub_versions: tuple[int, ...] = ()
    """For each of ``sub_jobs`` the schema version of its last step; 0 where that step shared the version of an earlier sub-job, or unknown."""

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Self:
        """Read one element of ``/ddl/history``; ``Corruption`` when it is not a job."""
        try:
            return cls._read(json)
        except (KeyError, TypeError, AttributeError) as error:
            where = json.get("id") if isinstance(json, Mapping) else json
            raise Corruption(f"job {where} of the DDL history cannot be read: {type(error).__name__} {error}") from error

    @classmethod
    def _read(cls, json: Mapping[str, Any]) -> Self:
        binlog = json.get("binlog") or {}
        db_info, table_info = binlog.get("DBInfo"), binlog.get("TableInfo")
        parts = (json.get("multi_schema_info") or {}).get("sub_jobs") or ()
        return cls(
            id=json["id"],
            type=json["type"],
            state=json["state"],
            schema_state=json.get("schema_state") or 0,
            schema_id=json["schema_id"],
            table_id=json["table_id"],
            schema_name=json.get("schema_name") or "",
            table_name=json.get("table_name") or "",
            query=json.get("query") or "",
            version=SchemaVersion(binlog.get("SchemaVersion") or 0),
            db_info=DbInfo.from_json(db_info) if db_info else None,
            table_info=TableInfo.from_json(table_info) if table_info else None,
            multiple_table_infos=tuple(TableInfo.from_json(t) for t in binlog.get("MultipleTableInfos") or ()),
            finished_ts=binlog.get("FinishedTS") or 0,
            start_ts=json.get("real_start_ts") or json.get("start_ts") or 0,
            sub_jobs=tuple(part["type"] for part in parts),
            sub_versions=tuple(part.get("schema_version") or 0 for part in parts),
            location=_location((json.get("reorg_meta") or {}).get("location")),
        )

    @property
    def effective(self) -> bool:
        """False for cancelled, rolled back and version-0 jobs and for types that no target can hold."""
        return self.version > 0 and self.state in (STATE_DONE, STATE_SYNCED) and self.kind.effect is not JobEffect.NONE

    @property
    def kind(self) -> JobKind:
        """What its type means."""
        return kind_of(self.type)

    @property
    def type_name(self) -> str:
        """The type in words, for messages."""
        try:
            return JobType(self.type).name.lower().replace("_", " ")
        except ValueError:
            return f"type {self.type}"


def _location(json: Mapping[str, Any] | None) -> Location | None:
    return Location(json.get("name") or "", json.get("offset") or 0) if json else None


class JobReader:
    """Reads jobs so that they share equal columns and indexes: hundreds of versions of a wide table take little memory."""

    def __init__(self) -> None:
        """An empty pool."""
        self._pool: dict[Any, Any] = {}

    def read(self, history: Iterable[Mapping[str, Any]]) -> list[Job]:
        """The jobs of one ``/ddl/history`` answer, in its order."""
        return [self._shared(Job.from_json(json)) for json in history]

    def know(self, jobs: Iterable[Job]) -> None:
        """Add the columns and indexes of jobs that were read before to the pool."""
        keep = self._pool.setdefault
        for info in (info for job in jobs for info in (job.table_info, *job.multiple_table_infos) if info is not None):
            for part in (*info.columns, *info.indexes):
                keep(part, part)

    def _shared(self, job: Job) -> Job:
        keep = self._pool.setdefault
        return dataclasses.replace(
            job,
            schema_name=keep(job.schema_name, job.schema_name),
            table_name=keep(job.table_name, job.table_name),
            table_info=self._table(job.table_info) if job.table_info else None,
            multiple_table_infos=tuple(self._table(t) for t in job.multiple_table_infos),
        )

    def _table(self, info: TableInfo) -> TableInfo:
        keep = self._pool.setdefault
        shared = dataclasses.replace(info, columns=tuple(keep(c, c) for c in info.columns), indexes=tuple(keep(i, i) for i in info.indexes))
        found: TableInfo = keep((shared.id, shared), shared)
        return found
