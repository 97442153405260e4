"""What a Pump and its readers both know of a log: positions, damage, whether it is still the same one."""
