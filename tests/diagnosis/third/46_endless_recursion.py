# truth: rank=1 line=6 kind=exception says=RecursionError: maximum recursion depth exceeded
# run: {L} --nproc-per-node=2 {C}/46_endless_recursion.py
import os, sys, time
rank = int(os.environ["RANK"])
def flatten(tree):
    return [flatten(each) for each in tree]
if rank == 1:
    time.sleep(0.5)
    tree = []
    tree.append(tree)
    flatten(tree)
time.sleep(300)
