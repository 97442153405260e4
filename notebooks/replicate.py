# Databricks notebook source
# MAGIC %md
# MAGIC # TiDB Binlog replication
# MAGIC
# MAGIC Starts the stream, shows its checkpoints and plots its lag. Settings come from `TIDB_BINLOG_CONFIG` (a TOML file, see `conf/drainer.toml`)
# MAGIC and from variables such as `TIDB_BINLOG__SYNCER__TO__HOST`.

# COMMAND ----------

import os
import time
from pathlib import Path

from conf.load import load_drainer
from jobs.replication import Replication
from jobs.report import render_line
from jobs.session import build_session

settings = os.environ.get("TIDB_BINLOG_CONFIG")
config = load_drainer(Path(settings) if settings else None)
spark = build_session("tidb-binlog notebook")

# COMMAND ----------

# MAGIC %md The stream: source, pairing, apply, checkpoint.

# COMMAND ----------

replication = Replication(spark, config).start()

# COMMAND ----------

# MAGIC %md Let it run for a while.

# COMMAND ----------

seconds = float(os.environ.get("TIDB_BINLOG_NOTEBOOK_SECONDS", "30"))
until = time.monotonic() + seconds
lags = []
while time.monotonic() < until:
    replication.check()
    progress = replication.progress()
    lags.append(progress.lag_seconds)
    print(render_line(progress))
    time.sleep(1)

# COMMAND ----------

# MAGIC %md What the target holds, batch by batch: the Delta table `checkpoint`.

# COMMAND ----------

replication.close()
checkpoints = spark.read.format("delta").load(config.delta_dir)
checkpoints.orderBy("resolved_ts", ascending=False).show(20, truncate=False)

# COMMAND ----------

import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(9, 3))
axes.plot(range(len(lags)), lags)
axes.set_xlabel("seconds since the start")
axes.set_ylabel("lag, seconds")
axes.set_title("Lag of the target behind the upstream")
figure
