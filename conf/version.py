"""The version of this project, as ``-V`` prints it and ``setup.cfg`` reads it."""

VERSION = "0.1.0"
