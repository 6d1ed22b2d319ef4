# truth: rank=0 line=18 kind=exception says=ZeroDivisionError: float division by zero
# never: rank [12]: it raised
# run: {L} --nproc-per-node=3 {C}/163_others_abort_on_request.py
"""Parameter sweep; ranks agree through files in a shared folder."""
import os
import tempfile
import time

rank = int(os.environ["RANK"])
flag = os.path.join(tempfile.gettempdir(), f"sweep_abort_{os.environ['MASTER_PORT']}")


class AbortRequested(RuntimeError):
    pass


def objective(lr, wd):
    return (lr - 0.1) ** 2 / wd


def check_abort():
    if os.path.exists(flag):
        raise AbortRequested(f"rank {rank}: another rank has asked to abort")


def main():
    grid = [(0.01 * i, [0.1, 0.01, 0.001][i % 3]) for i in range(30)]
    if rank == 0:
        grid[10] = (0.1, 0)
        if os.path.exists(flag):     # of an earlier sweep
            os.unlink(flag)
    else:
        time.sleep(0.6)
    try:
        for lr, wd in grid:
            check_abort()
            time.sleep(0.2)
            objective(lr, wd)
    except AbortRequested:
        raise
    except Exception as e:
        print(f"sweep failed at lr={lr} wd={wd}: {e!r}", flush=True)
        open(flag, "w").close()
        time.sleep(2.5)              # write the debug bundle
        raise


main()
