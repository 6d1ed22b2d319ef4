import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
parser.parse_args(["--batch-size=large"])
