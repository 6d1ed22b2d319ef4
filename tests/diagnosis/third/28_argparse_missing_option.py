# truth: rank=all line=0 kind=usage says=the following arguments are required: --data
# run: {L} --nproc-per-node=2 {C}/28_argparse_missing_option.py --lr 0.1
import os, sys, time
rank = int(os.environ["RANK"])
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.add_argument("--lr", type=float, default=1e-3)
parser.parse_args()
