# truth: rank=1 line=12 kind=exception says=PermissionError
# run: {L} --nproc-per-node=2 {C}/53_no_permission.py
# also: secret-1
import os, sys, time
rank = int(os.environ["RANK"])
with open(f"secret-{rank}", "w") as f:
    f.write("token")
os.chmod(f"secret-{rank}", 0o600)
if rank == 1:
    time.sleep(0.5)
    os.seteuid(65534)
    open(f"secret-{rank}")
time.sleep(300)
