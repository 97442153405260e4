"""The Spark session of a job: its settings, JVM, Python workers and jars."""
