"""The Kafka sink: binlogs as messages of one topic."""
