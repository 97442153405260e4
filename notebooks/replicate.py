# Databricks notebook source
# MAGIC %md
# MAGIC # Changes of a TiDB cluster, and their replication
# MAGIC
# MAGIC What was written to a cluster in the last minutes, as DataFrames: counts, one table, the DDLs, the life of one row. Then the replication
# MAGIC stream, its checkpoints and its lag.
# MAGIC
# MAGIC The cluster is that of a `drainer.toml` (`TIDB_BINLOG_CONFIG` is its path; `conf/drainer.toml` explains it) or of variables such as
# MAGIC `TIDB_BINLOG__PD_URLS` and `TIDB_BINLOG__SYNCER__TO__HOST`. Where none is set, the notebook runs a small cluster of its own: two Pumps, a
# MAGIC workload, and a private MariaDB as the target, whose programs it needs (`apt-get install mariadb-server`).

# COMMAND ----------

# MAGIC %md
# MAGIC The wheel (`make wheel` builds it) and what the stream needs beside it; PySpark is the notebook's own. Where this version is installed,
# MAGIC the cell changes nothing; in a clone without a wheel, whose folder is on `PYTHONPATH`, pip says that there is no such file: go on. In
# MAGIC Databricks, upload the wheel and put its path here, or delete the cell if it is a library of the cluster.

# COMMAND ----------

# MAGIC %pip install --quiet ../dist/tidb_binlog_spark-0.1.0-py3-none-any.whl h11 hpack prometheus_client matplotlib

# COMMAND ----------

if "dbutils" in globals():
    dbutils.library.restartPython()  # Databricks has imported the versions before already

# COMMAND ----------

# MAGIC %md `spark` and `display` are Databricks' own. Elsewhere they are made here.

# COMMAND ----------

try:
    spark
except NameError:
    from pyspark_tidb_binlog import build_session

    spark = build_session("tidb_binlog notebook")
    spark.conf.set("spark.sql.repl.eagerEval.enabled", "true")  # Jupyter shows a DataFrame's rows,
    spark.conf.set("spark.sql.repl.eagerEval.truncate", "200")  # with times and statements that can be read
try:
    display
except NameError:
    display = print

# COMMAND ----------

# MAGIC %md Which cluster, how much of its past, which table and which row.

# COMMAND ----------

import contextlib
import datetime
import os
import time
from pathlib import Path

from pyspark_tidb_binlog import load_drainer, small_cluster

minutes = float(os.environ.get("TIDB_BINLOG_NOTEBOOK_MINUTES", "15"))  # of the past
seconds = float(os.environ.get("TIDB_BINLOG_NOTEBOOK_SECONDS", "30"))  # for which the stream runs
table = os.environ.get("TIDB_BINLOG_NOTEBOOK_TABLE", "")  # "shop.orders"; empty: the one with the most changes
key = os.environ.get("TIDB_BINLOG_NOTEBOOK_KEY", "")  # of the row, '{"id":1}'; empty: the one with the most changes

own = contextlib.ExitStack()
settings = os.environ.get("TIDB_BINLOG_CONFIG")
if settings or any(name.startswith(("TIDB_BINLOG__", "BINLOG_SERVER_")) for name in os.environ):
    config = load_drainer(Path(settings) if settings else None)
else:
    config, workload = own.enter_context(small_cluster())

# COMMAND ----------

# MAGIC %md
# MAGIC ## Changes
# MAGIC
# MAGIC All tables, complete transactions only; `before` and `after` of each row are VARIANTs. A stream is the same with `spark.readStream`:
# MAGIC `docs/changes.md` has every column and option.

# COMMAND ----------

from pyspark.sql import functions as F

from pyspark_tidb_binlog import source_options

since = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=minutes)
cluster = source_options(config) | {"startingTimestamp": since.isoformat()}

every = spark.read.format("tidb_binlog").options(**cluster).load()
changes = every.selectExpr(
    "concat_ws('.', database, table) AS table", "op", "commit_ts", "commit_time", "seq", "to_json(key) AS key", "ddl"
).cache()
display(changes.groupBy("table", "op").count().orderBy("table", "op"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## One table
# MAGIC
# MAGIC Its own columns, with the types of its newest definition, and `_change_type`, `_commit_version`, `_commit_timestamp` as Delta's change
# MAGIC data feed names them.

# COMMAND ----------

of_tables = changes.where("op <> 'ddl'").groupBy("table").agg(F.count("*").alias("n"), F.max("commit_ts").alias("newest"))
found = [one for one in of_tables.orderBy(F.desc("n"), "table").collect() if table in ("", one.table)]
if not found:
    raise ValueError(f"no change of {table or 'any table'} since {since:%F %T} UTC: wait, or set TIDB_BINLOG_NOTEBOOK_MINUTES or _TABLE")
table = found[0].table

one_table = spark.read.format("tidb_binlog").options(**cluster).option("table", table)
rows = one_table.option("schemaCommitTs", found[0].newest).option("schemaEvolution", "ignore").load().cache()
print(f"changes of {table}:")
display(rows)

# COMMAND ----------

import matplotlib.pyplot as plt

COLOURS = {"insert": "tab:green", "update_postimage": "tab:blue", "delete": "tab:red"}
each_second = (
    rows.where("_change_type <> 'update_preimage'")
    .groupBy(F.date_trunc("second", "_commit_timestamp").alias("at"), "_change_type")
    .count()
    .orderBy("at")
    .collect()
)

figure, axes = plt.subplots(figsize=(9, 3), layout="constrained")
top: dict[float, int] = {}
for kind, colour in COLOURS.items():
    heights = {(one["at"] - each_second[0]["at"]).total_seconds(): one["count"] for one in each_second if one["_change_type"] == kind}
    axes.bar(
        list(heights), list(heights.values()), 0.9, [top.get(at, 0) for at in heights], color=colour, label=kind.removesuffix("_postimage")
    )
    top |= {at: top.get(at, 0) + height for at, height in heights.items()}
axes.set_xlabel(f"seconds since {each_second[0]['at']:%F %T}")
axes.set_ylabel("changes a second")
axes.set_title(f"Changes of {table}")
axes.legend()
display(figure)
plt.close(figure)

# COMMAND ----------

# MAGIC %md
# MAGIC ## DDLs
# MAGIC
# MAGIC Each statement, at the commit_ts from which rows have the new definition.

# COMMAND ----------

ddls = changes.where("op = 'ddl'").select("commit_time", "table", "ddl", "commit_ts").orderBy("commit_ts")
display(ddls)

# COMMAND ----------

newest = ddls.collect()[-25:]
figure, axes = plt.subplots(figsize=(9, 1.2 + 0.22 * len(newest)), layout="constrained")
if newest:
    moments = [(one.commit_time - newest[0].commit_time).total_seconds() for one in newest]
    axes.scatter(moments, range(len(newest)), marker="D", color="tab:purple")
    axes.set_yticks(range(len(newest)), [f"{' '.join(one.ddl.split()):.60}" for one in newest], fontsize=7)
    axes.set_xlabel(f"seconds since {newest[0].commit_time:%F %T}")
axes.invert_yaxis()
axes.grid(axis="y", linewidth=0.4)
axes.set_title("DDLs")
display(figure)
plt.close(figure)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The life of one row
# MAGIC
# MAGIC Every version of the row with one primary key, before and after each change.

# COMMAND ----------

of_table = changes.where((F.col("table") == table) & (F.col("op") != "ddl"))
key = key or of_table.groupBy("key").count().orderBy(F.desc("count"), "key").first().key
of_row = of_table.where(F.col("key") == key).selectExpr("commit_ts AS _commit_version", "seq AS _change_seq")
marks = ["_change_type", "_commit_timestamp"]
life = (
    rows.join(of_row, ["_commit_version", "_change_seq"], "left_semi")
    .orderBy("_commit_version", "_change_seq", F.col("_change_type") != "update_preimage")
    .select(*marks, *(name for name in rows.columns if name not in marks))
)
print(f"the row {key} of {table}:")
display(life)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The replication stream
# MAGIC
# MAGIC Source, pairing, apply, checkpoint: what `./spark-submit.sh drainer` runs, with the same settings, into the target that they name.

# COMMAND ----------

from pyspark_tidb_binlog import Replication

replication = Replication(spark, config).start()

# COMMAND ----------

# MAGIC %md Let it run for a while. Each line shows how far the target is behind, and what holds it back.

# COMMAND ----------

until = time.monotonic() + seconds
while time.monotonic() < until:
    replication.check()
    print(replication.progress())
    time.sleep(1)

# COMMAND ----------

# MAGIC %md What the target holds, batch by batch: the Delta table `checkpoint`. Closing the stream writes its last rows.

# COMMAND ----------

replication.close()
checkpoints = spark.read.format("delta").load(config.delta_dir).where("batch_id >= 0").orderBy("batch_id")
display(checkpoints)

# COMMAND ----------

# MAGIC %md Lag: the age of each batch's resolved_ts when the target had it.

# COMMAND ----------

batches = checkpoints.select("recorded_at", "resolved_at", "rows").collect()
lags = [(batch.recorded_at - batch.resolved_at).total_seconds() for batch in batches]

figure, axes = plt.subplots(figsize=(9, 3), layout="constrained")
axes.plot([(batch.recorded_at - batches[0].recorded_at).total_seconds() for batch in batches], lags, marker=".", linewidth=1)
axes.set_xlabel("seconds since the first batch")
axes.set_ylabel("lag, seconds")
axes.set_ylim(bottom=0)
axes.set_title("Lag of the target behind the upstream")
display(figure)
plt.close(figure)

# COMMAND ----------

# MAGIC %md The small cluster, if it was the notebook's own, ends here.

# COMMAND ----------

own.close()
