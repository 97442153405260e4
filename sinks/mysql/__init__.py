"""The target that speaks MySQL's protocol: its session, statements, parts and tables of its own."""
