import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--learning-rate", type=float, required=True)
parser.parse_args()
