# The texts are NCCL's; no GPU is needed for them.
import os
import sys
import time

if os.environ["RANK"] == "2":
    time.sleep(60)
    raise IndexError("index 50257 is out of bounds")
print(
    "[rank0]:[E] ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=41, OpType=ALLREDUCE) ran for 600003 milliseconds before timing out.",
    file=sys.stderr, flush=True,
)  # fmt: skip
os.abort()
