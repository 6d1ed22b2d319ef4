# truth: rank=all line=0 kind=usage says=unrecognized arguments: --epoch 3
# run: {L} --nproc-per-node=3 {C}/46_argparse_all_ranks.py  --lr 0.1 --epoch 3
import argparse
p = argparse.ArgumentParser(prog="train.py")
p.add_argument("--lr", type=float)
p.add_argument("--max-epochs", type=int)
p.add_argument("--data", default="/data")
args = p.parse_args()
