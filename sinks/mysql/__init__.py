"""A target that speaks the MySQL protocol: sessions, statements, parallel parts and the Drainer's own tables."""
