"""What would hinder a stream (``drainer --check``), and the state of nodes (``ctl``)."""
