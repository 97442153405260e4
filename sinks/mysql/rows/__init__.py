"""Every upstream row operation as a statement of its own, on several connections (``net-change = false``)."""
