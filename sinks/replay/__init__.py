"""Reparo's destinations that are databases: applies to them what a file sink wrote."""
