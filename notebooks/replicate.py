# Databricks notebook source
# MAGIC %md
# MAGIC # Changes of a TiDB cluster, and their replication
# MAGIC
# MAGIC The first part reads what a cluster wrote in the last minutes: the hot tables, the rate with its DDLs, the life of one row. The second part
# MAGIC replicates the cluster and shows where the lag comes from. The third part keeps it in a lake, and looks back.
# MAGIC
# MAGIC Your cluster: set `TIDB_BINLOG_CONFIG` to the path of a `drainer.toml` (`conf/drainer.toml` explains it), or set variables such as
# MAGIC `TIDB_BINLOG__PD_URLS` and `TIDB_BINLOG__SYNCER__TO__HOST`. Without settings the notebook starts a small cluster: two Pumps, a workload, and
# MAGIC a private MariaDB as the target. The small cluster needs MariaDB's programs (`apt-get install mariadb-server`).

# COMMAND ----------

# MAGIC %md
# MAGIC The next cell installs the wheel (`make wheel` builds it). In a clone without a wheel, pip reports that the file is missing: go on. In
# MAGIC Databricks, upload the wheel and put its path here, or delete the cell if the wheel is a library of the cluster.

# COMMAND ----------

# MAGIC %pip install --quiet ../dist/tidb_binlog_spark-0.1.0-py3-none-any.whl h11 hpack prometheus_client matplotlib "deltalake>=1.6.6,<1.7"

# COMMAND ----------

if "dbutils" in globals():
    dbutils.library.restartPython()  # Databricks has imported the versions before already

# COMMAND ----------

# MAGIC %md Databricks has `spark` and `display`. Elsewhere this cell makes them.

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
directory = os.environ.get("TIDB_BINLOG_NOTEBOOK_LAKE", "")  # of a lake that is read; empty: the stream fills a new one

own = contextlib.ExitStack()
settings = os.environ.get("TIDB_BINLOG_CONFIG")
if settings or any(name.startswith(("TIDB_BINLOG__", "BINLOG_SERVER_")) for name in os.environ):
    config = load_drainer(Path(settings) if settings else None)
else:
    config, workload = own.enter_context(small_cluster())
    time.sleep(seconds / 2)  # so that there is something to see

# COMMAND ----------

# MAGIC %md
# MAGIC ## Hot tables
# MAGIC
# MAGIC All tables, complete transactions only. A stream is the same with `spark.readStream`: `docs/changes.md` has every column and option.

# COMMAND ----------

from pyspark.sql import functions as F

from pyspark_tidb_binlog import source_options

since = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=minutes)
cluster = source_options(config) | {"startingTimestamp": since.isoformat()}
every = spark.read.format("tidb_binlog").options(**cluster).load()
changes = every.selectExpr(
    "concat_ws('.', database, table) AS table", "op", "commit_ts", "commit_time", "seq", "to_json(key) AS key", "ddl"
).cache()
of_rows = changes.where("op <> 'ddl'")


def show(title, rows, first=20):
    """Display the first rows, and print how many there are."""
    n = rows.count()
    print(f"{title}: {n} rows" if n <= first else f"{title}: the first {first} of {n} rows")
    display(rows.limit(first))


COLOURS = {"insert": "#2f9e6e", "update": "#3b78c3", "delete": "#d1495b"}
hot = of_rows.groupBy("table").pivot("op", list(COLOURS)).count().na.fill(0)
hot = hot.withColumn("changes", sum(map(F.col, COLOURS), F.lit(0))).orderBy(F.desc("changes"), "table")
show("changes of each table", hot)

# COMMAND ----------

import matplotlib.pyplot as plt

hottest = hot.limit(12).collect()[::-1]
if not hottest:
    raise ValueError(f"no change of any table since {since:%F %T} UTC: wait, or set TIDB_BINLOG_NOTEBOOK_MINUTES")
table = table or hottest[-1].table

figure, axes = plt.subplots(figsize=(9, 1 + 0.3 * len(hottest)), layout="constrained")
before = [0] * len(hottest)
for op, colour in COLOURS.items():
    axes.barh([row.table for row in hottest], [row[op] for row in hottest], left=before, color=colour, label=op)
    before = [left + row[op] for left, row in zip(before, hottest, strict=True)]
axes.set(title=f"The {len(hottest)} hottest tables", xlabel="changes")
axes.legend()
display(figure)
plt.close(figure)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The rate, and DDLs
# MAGIC
# MAGIC Each DDL is marked at its commit_ts. Rows after this commit_ts have the new definition.

# COMMAND ----------

ddls = changes.where("op = 'ddl'").select("commit_time", "commit_ts", "table", "ddl").orderBy("commit_ts")
show("DDLs", ddls)

# COMMAND ----------

second = F.date_trunc("second", "commit_time").alias("second")
rates = {(row.second, row.op): row.n for row in changes.groupBy(second, "op").agg(F.count("*").alias("n")).collect()}
begin = min(at for at, _ in rates)
marks = {}
for row in ddls.collect():
    marks.setdefault(row.commit_time.replace(microsecond=0), []).append(f"{' '.join(row.ddl.split()[:2])} {row.table.split('.')[-1]}")

figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
before = {}
for op, colour in COLOURS.items():
    heights = {at: n for (at, kind), n in rates.items() if kind == op}
    moments = [(at - begin).total_seconds() for at in heights]
    axes.bar(moments, list(heights.values()), 0.9, [before.get(at, 0) for at in heights], color=colour, label=op)
    before |= {at: before.get(at, 0) + n for at, n in heights.items()}
if len(marks) <= 25:  # more cannot be read
    names = [statements[0] if len(statements) == 1 else f"{len(statements)} DDLs" for statements in marks.values()]
    above = axes.secondary_xaxis("top")
    above.set_xticks([(at - begin).total_seconds() for at in marks], names, rotation=60, fontsize=7, ha="left", rotation_mode="anchor")
for at in marks:
    axes.axvline((at - begin).total_seconds(), color="#444444", linewidth=0.8, linestyle=":")
axes.set(title="Changes a second, and DDLs", xlabel=f"seconds since {begin:%F %T}", ylabel="changes")
axes.set_ylim(top=1.25 * max(before.values()))
axes.legend(loc="upper left", ncols=3)
display(figure)
plt.close(figure)

# COMMAND ----------

# MAGIC %md
# MAGIC ## One table
# MAGIC
# MAGIC The table's own columns, with the types of its newest definition, and `_change_type`, `_commit_version`, `_commit_timestamp` as Delta's
# MAGIC change data feed names them.

# COMMAND ----------

of_table = of_rows.where(F.col("table") == table)
newest = of_table.agg(F.max("commit_ts")).first()[0]
if newest is None:
    raise ValueError(f"no change of {table} since {since:%F %T} UTC: wait, or set TIDB_BINLOG_NOTEBOOK_MINUTES or _TABLE")
one_table = spark.read.format("tidb_binlog").options(**cluster).option("table", table)
rows = one_table.option("schemaCommitTs", newest).option("schemaEvolution", "ignore").load().cache()
show(f"changes of {table}", rows)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The life of one row
# MAGIC
# MAGIC What each change made of the row with one primary key.

# COMMAND ----------

key = key or of_table.groupBy("key").count().orderBy(F.desc("count"), "key").first().key
of_row = of_table.where(F.col("key") == key).selectExpr("commit_ts AS _commit_version", "seq AS _change_seq")
order = ["_commit_version", "_change_seq", F.col("_change_type") != "update_preimage"]
life = rows.join(of_row, ["_commit_version", "_change_seq"], "left_semi").orderBy(*order)

lived, image = [], {}
for version in life.collect():
    former, image = image, {name: version[name] for name in rows.columns[:-4]}
    changed = [f"{name}: {former.get(name)!s:.24} → {value!s:.24}" for name, value in image.items() if former.get(name) != value]
    if version._change_type == "update_postimage":
        lived.append((version._commit_timestamp, "update", ", ".join(changed)))
    elif version._change_type != "update_preimage":
        lived.append((version._commit_timestamp, version._change_type, ""))
show(f"the row {key} of {table}", spark.createDataFrame(lived, "commit_time timestamp, op string, changed string"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## The replication stream
# MAGIC
# MAGIC The stream of `./spark-submit.sh drainer`, with the same settings, into the target that they name. Each line shows how far the target is behind,
# MAGIC and what holds it back.

# COMMAND ----------

from pyspark_tidb_binlog import Replication

started = datetime.datetime.now(datetime.UTC)
replication = Replication(spark, config).start()

until = time.monotonic() + seconds
while time.monotonic() < until:
    replication.check()
    print(replication.progress())
    time.sleep(min(2, seconds))

# COMMAND ----------

# MAGIC %md The Delta table `checkpoint` has a row for each batch. Closing the stream writes the last rows.

# COMMAND ----------

replication.close()
checkpoints = spark.read.format("delta").load(config.delta_dir).where("batch_id >= 0").where(F.col("recorded_at") >= started)
rounded = "transform_values(timings, (stage, seconds) -> round(seconds, 3)) AS timings"
columns = ["batch_id", "resolved_at", "recorded_at", "rows", "transactions", "ddls", rounded]
show("batches", checkpoints.orderBy("batch_id").selectExpr(*columns))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Where the lag comes from
# MAGIC
# MAGIC Lag: the age of a batch's resolved_ts when the target has the batch. `source and Spark` is what the other stages leave: the Pumps' answers,
# MAGIC offsets, Spark's planning. Batches with changes from before the first batch was visible belong to the start-up. The plot leaves them out if
# MAGIC others follow.

# COMMAND ----------

STAGES = {
    "source and Spark": ("#8d99ae", ()),
    "read and pair": ("#3b78c3", ("read",)),
    "plan": ("#e9a23b", ("plan", "plan+delete")),
    "apply": ("#2f9e6e", ("write", "relay")),
    "DDL": ("#8e5ea2", ("ddl",)),
}
batches = checkpoints.orderBy("batch_id").collect()
caught_up = next((n for n, batch in enumerate(batches, 1) if batch.resolved_at >= batches[0].recorded_at), 0)
drawn = batches[caught_up:][-60:] or batches[-60:]

figure, axes = plt.subplots(figsize=(9, 3.2), layout="constrained")
tops = [0.0] * len(drawn)
lags = [(batch.recorded_at - batch.resolved_at).total_seconds() for batch in drawn]
for stage, (colour, names) in STAGES.items():
    parts = [sum(batch.timings.get(name, 0.0) for name in names) for batch in drawn]
    if not names:  # the rest of the lag
        parts = [max(0.0, lag - sum(batch.timings.values())) for lag, batch in zip(lags, drawn, strict=True)]
    axes.bar([batch.batch_id for batch in drawn], parts, bottom=tops, color=colour, label=stage)
    tops = [top + part for top, part in zip(tops, parts, strict=True)]
axes.set(title=f"Lag by stage: the last {len(drawn)} of {len(batches)} batches", xlabel="batch", ylabel="seconds")
axes.legend(loc="upper left", ncols=len(STAGES))
axes.set_ylim(top=1.25 * max(tops, default=1.0))
display(figure)
plt.close(figure)

# COMMAND ----------

# MAGIC %md
# MAGIC ## A lake
# MAGIC
# MAGIC The same stream into Delta tables (`docs/lake.md`). A lake has each table now, each table as it was at any moment since the lake began, and
# MAGIC every change. The next cell fills a new lake, or reads the one that `TIDB_BINLOG_NOTEBOOK_LAKE` names.

# COMMAND ----------

from dataclasses import replace
from tempfile import TemporaryDirectory

from pyspark_tidb_binlog.lake import Lake

if not directory:
    place = own.enter_context(TemporaryDirectory(prefix="lake-"))
    directory = f"{place}/lake"
    apply, files = replace(config.apply, db_type="lake"), replace(config.files, dir=directory)
    into_lake = replace(config, apply=apply, files=files, checkpoint_dir=f"{place}/spark", delta_dir=f"{place}/delta")
    now_ms, until = time.time() * 1000, time.monotonic() + seconds / 2
    with Replication(spark, into_lake) as filling:
        while time.monotonic() < until or filling.progress().resolved_ts >> 18 < now_ms:  # a commit_ts begins with milliseconds
            filling.check()
            time.sleep(0.2)

lake = Lake(spark, directory)
show(f"{table} at {lake.time:%F %T}", lake.table(table))

# COMMAND ----------

# MAGIC %md Its newest changes, from the ledger.

# COMMAND ----------

ledger = lake.changes(table).where("op <> 'ddl'")
images = ["commit_time", "op", "to_json(before) AS before", "to_json(after) AS after"]
show(f"changes of {table} in the lake", ledger.orderBy(F.desc("commit_ts"), F.desc("seq")).selectExpr(*images))

# COMMAND ----------

# MAGIC %md
# MAGIC How many rows the table had. The line counts the ledger's inserts and deletes. Each dot counts the rows of `lake.at(moment).table(…)`, at six
# MAGIC moments in between.

# COMMAND ----------

import itertools

by_commit = ledger.groupBy("commit_ts").agg(F.expr("sum(CASE op WHEN 'insert' THEN 1 WHEN 'delete' THEN -1 ELSE 0 END)").alias("more"))
steps = by_commit.orderBy("commit_ts").collect()
counted = list(itertools.accumulate(step.more for step in steps))
begun = steps[0].commit_ts
moments = [begun + (lake.commit_ts - begun) * n // 6 for n in range(1, 7)]
found = [lake.at(moment).table(table).count() for moment in moments]


def after_seconds(commit_ts):
    return ((commit_ts >> 18) - (begun >> 18)) / 1000


figure, axes = plt.subplots(figsize=(9, 3.2), layout="constrained")
axes.step(
    [after_seconds(step.commit_ts) for step in steps], counted, where="post", color="#8d99ae", label="inserts and deletes in the ledger"
)
axes.plot([after_seconds(moment) for moment in moments], found, "o", color="#d1495b", label="rows of the table at a moment")
axes.set(title=f"Rows of {table}", xlabel=f"seconds since {lake.at(begun).time:%F %T}", ylabel="rows")
axes.legend(loc="upper left")
display(figure)
plt.close(figure)

# COMMAND ----------

# MAGIC %md
# MAGIC What holds after every commit, in one SQL over the ledger: no table ever has fewer rows than none. With `after:balance::bigint` in place of the ones it
# MAGIC is a bank's invariant, debits are credits (`docs/lake.md`, Invariants).

# COMMAND ----------

lake.changes().createOrReplaceTempView("changes")
totals = spark.sql("""
    SELECT table, commit_ts, sum(sum(CASE op WHEN 'insert' THEN 1 WHEN 'delete' THEN -1 ELSE 0 END)) OVER (PARTITION BY table ORDER BY commit_ts) AS total
    FROM changes WHERE op <> 'ddl' GROUP BY table, commit_ts
""")
by_table = totals.groupBy("table").agg(
    F.count("*").alias("commits"), F.min("total").alias("fewest"), F.max_by("total", "commit_ts").alias("now")
)
show("rows of each table, over all commits", by_table.orderBy("table"))

# COMMAND ----------

# MAGIC %md The small cluster ends here.

# COMMAND ----------

own.close()
