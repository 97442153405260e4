# Databricks notebook source
# MAGIC %md
# MAGIC # TiDB Binlog replication
# MAGIC
# MAGIC Starts the stream, shows its checkpoints and plots its lag. Settings come from `TIDB_BINLOG_CONFIG` (a TOML file, see `conf/drainer.toml`)
# MAGIC and from variables such as `TIDB_BINLOG__SYNCER__TO__HOST`. `spark` and `display` are the notebook's own.

# COMMAND ----------

import dataclasses
import os
import time
from pathlib import Path

from pyspark_tidb_binlog.binlog_source.source.options import options_of
from pyspark_tidb_binlog.conf.load import load_drainer
from pyspark_tidb_binlog.jobs.replication import Replication
from pyspark_tidb_binlog.jobs.report import render_line
from pyspark_tidb_binlog.schemas.events import as_time, tso

settings = os.environ.get("TIDB_BINLOG_CONFIG")
config = load_drainer(Path(settings) if settings else None)
seconds = float(os.environ.get("TIDB_BINLOG_NOTEBOOK_SECONDS", "30"))

# COMMAND ----------

# MAGIC %md The stream: source, pairing, apply, checkpoint.

# COMMAND ----------

replication = Replication(spark, config).start()

# COMMAND ----------

# MAGIC %md Let it run for a while. Each line shows how far the target is behind, and what holds it back.

# COMMAND ----------

until = time.monotonic() + seconds
while time.monotonic() < until:
    replication.check()
    print(render_line(replication.progress()))
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

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

batches = checkpoints.select("recorded_at", "resolved_at", "rows").collect()
lags = [(batch.recorded_at - batch.resolved_at).total_seconds() for batch in batches]

figure, axes = plt.subplots(figsize=(9, 3), layout="constrained")
axes.plot([(batch.recorded_at - batches[0].recorded_at).total_seconds() for batch in batches], lags, marker=".", linewidth=1)
axes.set_xlabel("seconds since the first batch")
axes.set_ylabel("lag, seconds")
axes.set_ylim(bottom=0)
axes.set_title("Lag of the target behind the upstream")
display(figure)

# COMMAND ----------

# MAGIC %md The source by itself, as a batch: any span that the Pumps still hold can be read again, here the last five seconds.

# COMMAND ----------

newest = replication.commit_ts
print(f"transactions up to {as_time(newest)}")
span = dataclasses.replace(config.source, delivery="sorted", starting_commit_ts=max(0, newest - tso(5000)), ending_commit_ts=newest)
last = spark.read.format("tidb_binlog").options(**options_of(span)).load()
display(last.where("tp = 1").selectExpr("start_ts", "commit_ts", "length(payload) AS bytes").orderBy("commit_ts"))
