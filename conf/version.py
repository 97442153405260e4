"""The version of this project, as ``-V`` prints it; a test keeps it equal to that of ``setup.cfg``."""

VERSION = "0.1.0"
