"""What the measured jobs run: it says when it began, then does what its argument says.

    end          ends at once
    stay         stays until a file named `stop` appears in the working directory
    lines N      prints N lines

Standard library only, so that it is the launcher that is measured.
"""

import os
import sys
import time


def main() -> None:
    """Say `<restart> <rank> <pid>` and act."""
    restart, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
    # In one piece: print() writes several, and torchrun does not keep the lines of workers apart.
    os.write(1, f"{restart} {rank} {os.getpid()}\n".encode())
    if sys.argv[1] == "stay":
        end = time.monotonic() + 120
        while time.monotonic() < end and not os.path.exists("stop"):
            time.sleep(0.05)
    elif sys.argv[1] == "lines":
        sys.stdout.write("".join(f"step {n} loss 0.123456\n" for n in range(int(sys.argv[2]))))


main()
