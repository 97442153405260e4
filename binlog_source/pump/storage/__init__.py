"""The Pump's storage: the value log, its index, and the store that joins both."""
