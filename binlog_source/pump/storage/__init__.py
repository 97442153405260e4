"""The Pump's storage: value log, index and the store that joins them."""
