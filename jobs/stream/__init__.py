"""The replication stream as one object, and where a start resumes."""
