"""Row changes and DDLs as rows for people and tables: Arrow columns with Spark's types, or VARIANT. Pure."""
