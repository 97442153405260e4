"""A server of gRPC and HTTP on one port."""
