"""Runs the script of a job with `--run-path`, by runpy.run_path.

The workers' interpreter, which need not have relight installed, gets its text with -c.
"""

import os
import runpy
import sys

if __name__ == "__main__":
    script = sys.argv[1]
    del sys.argv[0]
    # As for `python agent/entrypoint.py`: imports are looked up beside the script, not beside this
    # file. (A directory or an archive is put there by runpy itself.)
    sys.path[0] = os.path.dirname(os.path.realpath(script))
    runpy.run_path(script, run_name="__main__")
