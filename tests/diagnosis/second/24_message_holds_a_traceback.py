# truth: rank=1 line=19 kind=exception says=RemoteError
# also: tar: shard 12: unexpected end of file
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# run: {L} --nproc-per-node=2 {C}/24_message_holds_a_traceback.py
import os, time
rank = int(os.environ["RANK"])
class RemoteError(Exception):
    pass
REMOTE = '''the worker failed
Traceback (most recent call last):
  File "/srv/worker/loop.py", line 88, in serve
    item = self.read(job)
  File "/srv/worker/tar.py", line 12, in read
    raise EOFError("tar: shard 12: unexpected end of file")
EOFError: tar: shard 12: unexpected end of file
'''
time.sleep(0.5)
if rank == 1:
    raise RemoteError(REMOTE)
time.sleep(60)
