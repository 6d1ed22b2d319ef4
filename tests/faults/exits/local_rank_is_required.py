import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, required=True)
parser.parse_args()
