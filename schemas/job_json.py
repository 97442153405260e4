"""DDL jobs as JSON in the form in which TiDB's status port gives them, so that a record of jobs is read by ``Job.from_json``. Pure.

Promises: ``Job.from_json(job_json(job)) == job``. Only what ``Job`` keeps is written.
"""

import base64
from typing import Any

from pyspark_tidb_binlog.schemas.ddl_jobs import DbInfo, Job
from pyspark_tidb_binlog.schemas.tableinfo import (
    ColumnInfo,
    ForeignKey,
    IndexInfo,
    PartitionDef,
    SequenceInfo,
    TableInfo,
    TtlInfo,
    ViewInfo,
)


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
        "num": info.partition_num,
        "enable": info.partition_enabled,
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
        "view": _view(info.view) if info.is_view else None,
        "sequence": _sequence(info.sequence) if info.is_sequence else None,
        "temp_table_type": info.temp_table_type,
        "comment": info.comment,
        "fk_info": [_foreign_key(k) for k in info.foreign_keys],
        "ttl_info": info.ttl and _ttl(info.ttl),
        "auto_random_bits": info.auto_random_bits,
        "ShardRowIDBits": info.shard_row_id_bits,
        "auto_inc_id": info.auto_increment,
        "constraint_info": [{"constraint_name": {"O": name}} for name in info.checks],
        "policy_ref_info": {"name": {"O": info.placement}} if info.placement else None,
    }


def _database(info: DbInfo) -> dict[str, Any]:
    return {"id": info.id, "db_name": {"O": info.name}, "charset": info.charset, "collate": info.collate}


def _foreign_key(key: ForeignKey) -> dict[str, Any]:
    return {
        "fk_name": {"O": key.name},
        "cols": [{"O": c} for c in key.columns],
        "ref_schema": {"O": key.ref_schema},
        "ref_table": {"O": key.ref_table},
        "ref_cols": [{"O": c} for c in key.ref_columns],
        "on_delete": key.on_delete,
        "on_update": key.on_update,
    }


def _ttl(ttl: TtlInfo) -> dict[str, Any]:
    return {
        "column": {"O": ttl.column},
        "interval_expr": ttl.interval,
        "interval_time_unit": ttl.unit,
        "enable": ttl.enabled,
        "job_interval": ttl.job_interval,
    }


def _sequence(numbers: SequenceInfo | None) -> dict[str, Any]:
    if numbers is None:
        return {}
    return {
        "sequence_start": numbers.start,
        "sequence_increment": numbers.increment,
        "sequence_min_value": numbers.min_value,
        "sequence_max_value": numbers.max_value,
        "sequence_cache": numbers.cache > 0,
        "sequence_cache_value": numbers.cache,
        "sequence_cycle": numbers.cycle,
    }


def _view(view: ViewInfo | None) -> dict[str, Any]:
    if view is None:
        return {}
    return {
        "view_select": view.select,
        "view_algorithm": view.algorithm,
        "view_security": int(view.invoker),
        "view_definer": {"Username": view.user, "Hostname": view.host},
    }


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
        "index_type": index.type,
        "is_invisible": index.invisible,
        "comment": index.comment,
    }


def _partition(part: PartitionDef) -> dict[str, Any]:
    return {"id": part.id, "name": {"O": part.name}, "less_than": part.less_than, "in_values": part.in_values, "comment": part.comment}


def _bits(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
