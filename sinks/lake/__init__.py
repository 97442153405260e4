"""The lake: changes of all tables in Delta, written by delta-rs."""
