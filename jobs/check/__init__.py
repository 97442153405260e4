"""Reports what would stop a stream (``drainer --check``), and the state of nodes (``ctl``)."""
