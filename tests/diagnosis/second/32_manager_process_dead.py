# truth: rank=0 line=12 kind=exception says=Error
# never: (?i)rank 0[^\n]*lost [^\n]*\brank [12]\b
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:1|2)\b
# run: {L} --nproc-per-node=3 {C}/32_manager_process_dead.py
import multiprocessing as mp, os, time
rank = int(os.environ["RANK"])
if __name__ == "__main__":
    if rank == 0:
        manager = mp.get_context("fork").Manager()
        stats = manager.dict()
        for step in range(100):
            stats["step"] = step
            time.sleep(0.05)
            if step == 10:  # as an OOM killer would: the helper dies, not a rank
                os.kill(manager._process.pid, 9)
    time.sleep(60)
