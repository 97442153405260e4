"""The Drainer as a node of the cluster."""
