"""The Pump: a durable log of binlogs and the service that writes it and hands it out (pump.md)."""
