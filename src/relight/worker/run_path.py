"""Runs a job's script with runpy.run_path, for `--run-path`.

The source of this file is passed to the workers' interpreter with -c, so that interpreter doesn't
need to have relight installed.
"""

import os
import runpy
import sys

if __name__ == "__main__":
    script = sys.argv[1]
    del sys.argv[0]
    # As with `python agent/entrypoint.py`, imports are looked up next to the script rather than
    # next to this file. (If the script is a directory or an archive, runpy itself adds it to the
    # path.)
    sys.path[0] = os.path.dirname(os.path.realpath(script))
    runpy.run_path(script, run_name="__main__")
