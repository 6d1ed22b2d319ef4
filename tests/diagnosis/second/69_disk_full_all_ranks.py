# truth: rank=all line=7 kind=exception says=No space left on device
# run: unshare -m bash -c "mkdir -p full.tmp && mount -t tmpfs -o size=1M none full.tmp && {L} --nproc-per-node=3 {C}/69_disk_full_all_ranks.py; umount full.tmp; rmdir full.tmp"
import os, time
rank = os.environ["RANK"]
f = open(f"full.tmp/rank{rank}.log", "w", buffering=1 << 16)
for step in range(1000):
    f.write(f"step {step} " + "." * 9000 + "\n")
    time.sleep(0.005)
