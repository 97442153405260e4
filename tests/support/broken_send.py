"""A process that sends three messages by Spark, of which the second ends the task: MASTER BROKERS TOPIC SQL. Prints what the send raised."""

import sys

from pyspark.sql import DataFrame

from pyspark_tidb_binlog.jobs.spark.fetched_jars import KAFKA_SINK_JARS, jars_in
from pyspark_tidb_binlog.jobs.spark.spark_session import build_session
from pyspark_tidb_binlog.schemas.errors import ApplyError
from pyspark_tidb_binlog.sinks.kafka import spark_topic
from pyspark_tidb_binlog.sinks.kafka.topic_settings import BrokerSettings


def main(master: str, addrs: str, name: str, end: str) -> None:
    """Send once."""
    jars = KAFKA_SINK_JARS.place()
    assert jars is not None, "Spark's Kafka sink is missing: ./spark-submit.sh setup --kafka"
    spark = build_session("broken-send", master=master, delta=False, extra={"spark.jars": ",".join(jars_in(jars))})
    first_attempt = spark_topic.of_first_attempt

    def broken(frame: DataFrame) -> DataFrame:
        fails = f"CASE WHEN value = 'b' THEN concat('', {end}) ELSE '' END"
        return first_attempt(frame).selectExpr(f"CASE WHEN length({fails}) >= 0 THEN value END AS value", "partition")

    spark_topic.of_first_attempt = broken
    topic = spark_topic.SparkTopic(spark, BrokerSettings(addrs, name, max_messages=3))
    try:
        topic.send([b"a", b"b", b"c"])
    except ApplyError as error:
        print(error)
    topic.close()
    spark.stop()


main(*sys.argv[1:])
