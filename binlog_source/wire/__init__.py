"""What a Pump and its readers share: names in their calls, positions in a log, its damage, and whether it is still the same log."""
