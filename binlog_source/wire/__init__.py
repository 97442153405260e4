"""What a Pump and its readers share: names in their calls, positions in a log, damaged places, and the check that a log is still the same."""
