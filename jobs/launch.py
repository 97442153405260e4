"""What ``spark-submit`` is given to run: ``launch.py JOB [options]`` calls ``main`` of the module ``jobs.JOB``.

Promises: the job's code is imported as a module and never is ``__main__``, so whatever it sends to executors is sent by name.
"""

import sys
from importlib import import_module

from jobs.cli import run_job

if __name__ == "__main__":
    sys.exit(run_job(import_module(f"jobs.{sys.argv[1]}").main, sys.argv[2:]))
