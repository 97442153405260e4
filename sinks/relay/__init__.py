"""The relay log: what is about to be applied in parts is kept in local files, so that a target can be made consistent without the upstream."""
