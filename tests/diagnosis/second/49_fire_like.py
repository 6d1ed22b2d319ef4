# truth: rank=all line=0 kind=usage says=Could not consume arg: --lrr
# run: {L} --nproc-per-node=3 {C}/49_fire_like.py  train --lrr 3
import sys
# what fire prints
print(f"""ERROR: Could not consume arg: --lrr
Usage: {sys.argv[0]} train <flags>
  optional flags:        --lr | --steps

For detailed information on this command, run:
  {sys.argv[0]} train --help""", file=sys.stderr)
sys.exit(2)
