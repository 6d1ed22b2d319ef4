# truth: rank=all line=0 kind=usage says=--local_rank
# run: {L} --nproc-per-node=2 {C}/30_wants_local_rank.py
# never: (?i)gone or late
import os, sys, time
rank = int(os.environ["RANK"])
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, required=True)
args = parser.parse_args()
