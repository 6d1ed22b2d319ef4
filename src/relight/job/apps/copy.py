"""Copies one file. If fsspec is installed, the source and the destination may be URLs."""

import argparse
import os
import shutil
import sys
from typing import IO, Any


def main(argv: list[str] | None = None) -> int:
    """Copy the file and return the exit code."""
    parser = argparse.ArgumentParser(description="copy one file")
    parser.add_argument("--src", required=True)
    parser.add_argument("--dst", required=True)
    given = parser.parse_args(argv)
    try:
        with _open(given.src, "rb") as source, _open(given.dst, "wb") as destination:
            shutil.copyfileobj(source, destination)
    except (OSError, ImportError) as error:
        print(f"copy: {given.src} to {given.dst}: {error}", file=sys.stderr)
        return 1
    return 0


def _open(path: str, mode: str) -> "IO[Any]":
    if "://" not in path:
        if mode == "wb":
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        return open(path, mode)
    import fsspec

    opened: IO[Any] = fsspec.open(path, mode).open()
    return opened


if __name__ == "__main__":
    sys.exit(main())
