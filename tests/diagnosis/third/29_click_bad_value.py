# truth: rank=all line=0 kind=usage says=Invalid value for '--lr': 'fast' is not a valid float
# run: {L} --nproc-per-node=2 {C}/29_click_bad_value.py --lr fast
import os, sys, time
rank = int(os.environ["RANK"])
import click
@click.command()
@click.option("--lr", type=float)
def main(lr): ...
main()
