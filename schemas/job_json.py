"""DDL jobs as JSON in the form in which TiDB's status port gives them, so that a record of jobs is read by ``Job.from_json``. Pure.

Promises: ``Job.from_json(job_json(job)) == job``. Only what ``Job`` keeps is written.
"""

import base64
from typing import Any

from pyspark_tidb_binlog.schemas.ddl_jobs import DbInfo, Job
from pyspark_tidb_binlog.schemas.tableinfo import ColumnInfo, IndexInfo, PartitionDef, TableInfo


def job_json(job: Job) -> dict[str, Any]:
    """One element of ``/ddl/history``."""
    parts = [{"type": kind, "schema_version": version} for kind, version in zip(job.sub_jobs, job.sub_versions, strict=True)]
    location = job.location and {"location": {"name": job.location.name, "offset": job.location.offset}}
    return {
        "id": job.id,
        "type": job.type,
        "state": job.state,
        "schema_state": job.schema_state,
        "schema_id": job.schema_id,
        "table_id": job.table_id,
        "schema_name": job.schema_name,
        "table_name": job.table_name,
        "query": job.query,
        "real_start_ts": job.start_ts,
        "multi_schema_info": {"sub_jobs": parts} if parts else None,
        "reorg_meta": location,
        "binlog": {
            "SchemaVersion": job.version,
            "DBInfo": job.db_info and _database(job.db_info),
            "TableInfo": job.table_info and table_json(job.table_info),
            "MultipleTableInfos": [table_json(info) for info in job.multiple_table_infos],
            "FinishedTS": job.finished_ts,
        },
    }


def table_json(info: TableInfo) -> dict[str, Any]:
    """``binlog.TableInfo``."""
    partition = {
        "type": info.partition_type,
        "expr": info.partition_expr,
        "columns": [{"O": name} for name in info.partition_columns],
        "definitions": [_partition(p) for p in info.partitions],
    }
    return {
        "id": info.id,
        "name": {"O": info.name},
        "charset": info.charset,
        "collate": info.collate,
        "cols": [_column(c) for c in info.columns],
        "index_info": [_index(i) for i in info.indexes],
        "pk_is_handle": info.pk_is_handle,
        "is_common_handle": info.is_common_handle,
        "partition": partition if info.partition_type or info.partitions else None,
        "view": {} if info.is_view else None,
        "sequence": {} if info.is_sequence else None,
        "temp_table_type": info.temp_table_type,
        "comment": info.comment,
        "fk_info": [
            {"fk_name": {"O": name}, "cols": [{"O": c} for c in columns]}
            for name, columns in zip(info.foreign_keys, info.foreign_key_columns, strict=True)
        ],
    }


def _database(info: DbInfo) -> dict[str, Any]:
    return {"id": info.id, "db_name": {"O": info.name}, "charset": info.charset, "collate": info.collate}


def _column(column: ColumnInfo) -> dict[str, Any]:
    kind = {
        "Tp": column.tp,
        "Flag": column.flag,
        "Flen": column.flen,
        "Decimal": column.decimal,
        "Charset": column.charset,
        "Collate": column.collate,
        "Elems": list(column.elems),
    }
    return {
        "id": column.id,
        "name": {"O": column.name},
        "offset": column.offset,
        "type": kind,
        "origin_default": column.origin_default,
        "origin_default_bit": _bits(column.origin_default_bit),
        "default": column.default,
        "default_bit": _bits(column.default_bit),
        "default_is_expr": column.default_is_expr,
        "generated_expr_string": column.generated_expr,
        "generated_stored": column.generated_stored,
        "hidden": column.hidden,
        "state": column.state,
        "comment": column.comment,
        "version": column.version,
    }


def _index(index: IndexInfo) -> dict[str, Any]:
    return {
        "id": index.id,
        "idx_name": {"O": index.name},
        "idx_cols": [{"name": {"O": c.name}, "offset": c.offset, "length": c.length} for c in index.columns],
        "is_unique": index.unique,
        "is_primary": index.primary,
        "state": index.state,
        "is_invisible": index.invisible,
        "comment": index.comment,
    }


def _partition(part: PartitionDef) -> dict[str, Any]:
    return {"id": part.id, "name": {"O": part.name}, "less_than": part.less_than, "in_values": part.in_values}


def _bits(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
