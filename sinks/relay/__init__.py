"""The relay log: local files of what is about to be applied in parts. With it a target becomes consistent without the upstream."""
