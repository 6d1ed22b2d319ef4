"""Runs seeds until one fails: `python -m tests.simulation --seeds 1000 --from 0`."""

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Iterator
from functools import partial

from .chaos import MODES, Run


def play(seed: int, mode: str = "") -> tuple[int, int, str]:
    """Run a seed. Return it, its log's digest, and the violation with the log."""
    run = Run(seed, mode)
    try:
        run.run()
    except Exception:
        error = traceback.format_exc(limit=-4)
        log = "\n".join(run.world.lines)
        return seed, run.world.digest, f"{log}\n{run.mode}, {run.settings}\nseed {seed}: {error}"
    return seed, run.world.digest, ""


def plays(seeds: range, processes: int, mode: str = "") -> Iterator[tuple[int, int, str]]:
    """Run seeds, in several processes if that is worthwhile."""
    if processes <= 1 or len(seeds) < 2:
        yield from (play(seed, mode) for seed in seeds)
        return
    with multiprocessing.Pool(processes) as pool:
        yield from pool.imap_unordered(partial(play, mode=mode), seeds, chunksize=10)


def main() -> int:
    """Run seeds, and return 1 if one has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="start", help="the first one")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep-going", action="store_true", help="go on after a seed has failed")
    parser.add_argument("--digest", action="store_true", help="print the digest of each log")
    parser.add_argument("--mode", choices=MODES, default="", help="play this one only")
    options = parser.parse_args()
    begun, failed = time.monotonic(), []
    for seed, digest, wrong in plays(
        range(options.start, options.start + options.seeds), options.processes, options.mode
    ):
        if options.digest:
            print(seed, digest)
        if wrong:
            failed.append(seed)
            print(wrong if not options.keep_going else f"{wrong.splitlines()[-1]} (seed {seed})")
            if not options.keep_going:
                break
    seconds = time.monotonic() - begun
    print(f"{options.seeds} seeds, {seconds:.1f} s, failed: {sorted(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
