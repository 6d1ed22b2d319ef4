"""The benchmarks' workers, which report their start and then do what their argument says.

    end          exits immediately
    stay         runs until a file named `stop` appears in the working directory
    lines N      prints N lines

It uses only the standard library, so the benchmarks measure the launcher.
"""

import os
import sys
import time


def main() -> None:
    """Print `<restart> <rank> <pid>`, and act according to the argument."""
    restart, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
    # A single write: print() would write several times, and torchrun would mix up workers' lines.
    os.write(1, f"{restart} {rank} {os.getpid()}\n".encode())
    if sys.argv[1] == "stay":
        end = time.monotonic() + 120
        while time.monotonic() < end and not os.path.exists("stop"):
            time.sleep(0.05)
    elif sys.argv[1] == "lines":
        sys.stdout.write("".join(f"step {n} loss 0.123456\n" for n in range(int(sys.argv[2]))))


main()
