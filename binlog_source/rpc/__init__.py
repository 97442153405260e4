"""Serving gRPC and HTTP on one port."""
