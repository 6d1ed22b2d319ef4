"""This installation of relight: its version, and where its files are."""

import os
from typing import Any

__version__ = "0.1.0"

DIRECTORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The package's directory. In the launcher file, it is a path inside the archive."""


def read(path: str) -> str:
    """Return the text of one of the package's files, given its path in the package.

    Raises:
        OSError: if the file doesn't exist.
    """
    loader: Any = __spec__.loader
    return str(loader.get_data(os.path.join(DIRECTORY, path)).decode())
