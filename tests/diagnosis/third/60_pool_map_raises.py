# truth: rank=1 line=8 kind=exception says=LookupError: unknown language tag 'xx'
# run: {L} --nproc-per-node=2 {C}/60_pool_map_raises.py
import os, sys, time
rank = int(os.environ["RANK"])
import multiprocessing as mp
def tag(code):
    if code == "xx":
        raise LookupError("unknown language tag 'xx'")
    return code
if __name__ == "__main__":
    if rank == 1:
        time.sleep(0.5)
        with mp.get_context("fork").Pool(2) as pool:
            pool.map(tag, ["en", "de", "xx", "fr"])
    time.sleep(300)
