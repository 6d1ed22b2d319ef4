# truth: rank=1 line=20 kind=exception says=ExceptionGroup: 3 of 5 shards failed
# also: shard [024]: checksum differs
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# run: {L} --nproc-per-node=2 {C}/25_exception_group_with_notes.py
import os, time
rank = int(os.environ["RANK"])
def verify(i):
    if i % 2 == 0:
        e = ValueError(f"shard {i}: checksum differs")
        e.add_note("the shard is read again from the origin with --refetch")
        raise e
time.sleep(0.5)
errors = []
for i in range(5 if rank == 1 else 0):
    try:
        verify(i)
    except ValueError as e:
        errors.append(e)
if errors:
    raise ExceptionGroup("3 of 5 shards failed", errors)
time.sleep(60)
