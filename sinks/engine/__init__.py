"""What all targets share: a span's steps, the net change of its rows, the DDL history they are read by."""
