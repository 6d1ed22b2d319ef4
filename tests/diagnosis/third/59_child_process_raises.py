# truth: rank=0 line=7 kind=exception says=ValueError: cannot reshape array of size 10 into shape (3,4)
# run: {L} --nproc-per-node=2 {C}/59_child_process_raises.py
import os, sys, time
rank = int(os.environ["RANK"])
import multiprocessing as mp
def resize():
    raise ValueError("cannot reshape array of size 10 into shape (3,4)")
if __name__ == "__main__":
    if rank == 0:
        time.sleep(0.5)
        child = mp.get_context("fork").Process(target=resize)
        child.start()
        child.join()
        sys.exit(child.exitcode)
    time.sleep(300)
