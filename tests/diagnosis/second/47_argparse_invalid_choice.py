# truth: rank=all line=0 kind=usage says=invalid choice: 'fp61'
# run: {L} --nproc-per-node=2 {C}/47_argparse_invalid_choice.py  --precision fp61
import argparse, os, time
time.sleep(0.02 * int(os.environ["RANK"]))
p = argparse.ArgumentParser()
p.add_argument("--precision", choices=["fp32", "bf16", "fp16"])
args = p.parse_args()
