"""Shared by all targets: the steps of a span, the net changes of its rows, and the DDL history needed to decode them."""
