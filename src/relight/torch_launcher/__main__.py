"""Runs `python -m relight.torch_launcher`."""

import sys

from relight.base.errors import UsageError
from relight.torch_launcher.replacement import main

if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UsageError as error:
        sys.exit(f"relight: error: {error}" + f"\nhint: {error.hint}" * bool(error.hint))
