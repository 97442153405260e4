"""The byte encodings of a TiDB row, one file per encoding, decode and encode side by side."""
