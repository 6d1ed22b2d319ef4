# truth: rank=0 line=8 kind=hang says=rank 0 hangs
# never: rank 1 hangs
# run: {L} --nproc-per-node=2 --hang-timeout 8 {C}/156_thread_dies_and_the_rank_hangs.py
import threading
import torch, torch.distributed as dist
ready = threading.Event()
def schedule(config):
    lr = config["lr"]
    ready.set()
dist.init_process_group("gloo")
for _ in range(3):
    dist.all_reduce(torch.ones(2))
config = {} if dist.get_rank() == 0 else {"lr": 0.1}
threading.Thread(target=schedule, args=(config,), daemon=True).start()
ready.wait()
dist.barrier()
