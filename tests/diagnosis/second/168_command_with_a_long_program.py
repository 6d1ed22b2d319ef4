# truth: rank=1 line=20 kind=exception says=returned non-zero exit status 9
# run: {L} --nproc-per-node=2 {C}/168_command_with_a_long_program.py
import os
import subprocess
import sys
import time

RANK = int(os.environ["RANK"])


def gpu_topology():
    """Ask the helper, its output is parsed."""
    code = (
        "import sys, os\n"
        "if os.environ['LOCAL_RANK'] == '1':\n"
        "    sys.stderr.write('topo: device 1 fell off the bus\\n')\n"
        "    sys.exit(9)\n"
        "print('PIX PIX SYS')\n"
    )
    res = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return res.stdout.split()


def main():
    time.sleep(1)
    links = gpu_topology()
    print(RANK, links)
    time.sleep(4)


if __name__ == "__main__":
    main()
