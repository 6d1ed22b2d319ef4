# truth: rank=1 line=0 kind=signal says=SIGXCPU
# run: {L} --nproc-per-node=2 {C}/28_rlimit_cpu.py
import os, sys, time, datetime
import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
world = int(os.environ["WORLD_SIZE"])
import resource

dist.init_process_group("gloo")
if rank == 1:
    resource.setrlimit(resource.RLIMIT_CPU, (6, 20))
    while True:
        pass
dist.barrier()
dist.destroy_process_group()
# also: (?i)CPU time
# never: not sent by relight
