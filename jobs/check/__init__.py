"""What would hinder a stream, and what there is to see of one."""
