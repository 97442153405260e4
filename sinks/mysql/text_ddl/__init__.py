"""DDLs of which nothing but the text is known: from a relay log or a file sink's files."""
