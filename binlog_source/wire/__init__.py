"""What a Pump and its readers share about a log: positions, damage, and whether it is still the same log."""
