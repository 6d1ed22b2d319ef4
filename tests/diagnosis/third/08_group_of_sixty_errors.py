# truth: rank=1 line=16 kind=exception says=60 shards could not be read
# run: {L} --nproc-per-node=2 {C}/08_group_of_sixty_errors.py
# also: ExceptionGroup
import os, sys, time
rank = int(os.environ["RANK"])
def read(i):
    raise OSError(5, "Input/output error", f"/data/shard-{i:05d}.tar")
if rank == 1:
    time.sleep(0.5)
    errors = []
    for i in range(60):
        try:
            read(i)
        except OSError as e:
            errors.append(e)
    raise ExceptionGroup("60 shards could not be read", errors)
time.sleep(300)
