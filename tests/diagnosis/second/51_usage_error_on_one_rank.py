# truth: rank=1 line=0 kind=usage says=argument --shard: invalid int value: 'one'
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0|2)\b
# run: {L} --nproc-per-node=3 {C}/51_usage_error_on_one_rank.py
import argparse, os, time
rank = int(os.environ["RANK"])
p = argparse.ArgumentParser(prog="train.py")
p.add_argument("--shard", type=int)
# a list made by hand: one of the words is wrong
p.parse_args(["--shard", ["0", "one", "2"][rank]])
time.sleep(60)
