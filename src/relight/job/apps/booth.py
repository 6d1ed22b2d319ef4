"""Evaluates Booth's function, whose minimum is 0 at (1, 3)."""

import argparse
import json
import os
import sys

from relight.host import files


def main(argv: list[str] | None = None) -> int:
    """Evaluate the function, print its value and write the value to the tracker's directory."""
    parser = argparse.ArgumentParser(description="evaluate Booth's function")
    parser.add_argument("--x1", type=float, required=True)
    parser.add_argument("--x2", type=float, required=True)
    parser.add_argument("--trial_idx", type=int, default=0)
    parser.add_argument("--tracker_base", required=True)
    given = parser.parse_args(argv)
    value = (given.x1 + 2 * given.x2 - 7) ** 2 + (2 * given.x1 + given.x2 - 5) ** 2
    folder = os.path.join(given.tracker_base, str(given.trial_idx))
    os.makedirs(folder, exist_ok=True)
    files.replace(os.path.join(folder, "result"), json.dumps({"booth_eval": value}), 0o666)
    print(f"booth({given.x1}, {given.x2}) = {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
