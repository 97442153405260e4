"""Reparo's destinations that are databases: what a file sink wrote is applied to them."""
