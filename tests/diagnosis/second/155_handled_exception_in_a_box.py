# truth: rank=0 line=0 kind=signal says=rank 0 was killed by SIGKILL
# never: then raised|raised ZeroDivisionError
# never: its last traceback:
# run: {L} --nproc-per-node=2 {C}/155_handled_exception_in_a_box.py
import os, signal, sys, time
LINE = "─" * 20
BOX = """\
╭{line} Traceback (most recent call last) {line}╮
│ {file}:15 in <module> │
│ ❱ 15 │   throughput = 100 / 0 │
╰{line}╯
ZeroDivisionError: division by zero\
"""
try:
    throughput = 100 / 0
except ZeroDivisionError:  # printed by rich's console.print_exception()
    print(BOX.format(line=LINE, file=os.path.abspath(__file__)), file=sys.stderr, flush=True)
time.sleep(3)
if os.environ["RANK"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(30)
