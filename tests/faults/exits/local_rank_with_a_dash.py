import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
parser.parse_args()
