"""The Pump: a durable log of binlogs and the service that writes and serves it (pump.md)."""
