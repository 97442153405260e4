"""Row events and DDLs as the binlogs that a Drainer hands on: files of binlogs, the relay log, Kafka messages."""
