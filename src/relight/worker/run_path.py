"""Runs the script of a job with `--run-path`, using runpy.run_path.

The source of this file is passed to the workers' interpreter with -c, so relight need not be
installed there.
"""

import os
import runpy
import sys

if __name__ == "__main__":
    script = sys.argv[1]
    del sys.argv[0]
    # As with `python agent/entrypoint.py`, imports are looked up next to the script rather than
    # next to this file. (If it is a directory or an archive, runpy itself adds it to the path.)
    sys.path[0] = os.path.dirname(os.path.realpath(script))
    runpy.run_path(script, run_name="__main__")
