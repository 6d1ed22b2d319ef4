# truth: rank=all line=0 kind=usage says=No such option: --learning-rte
# run: {L} --nproc-per-node=3 {C}/48_click_like.py  --learning-rte 0.1
import sys
# what click prints
sys.stderr.write(f"Usage: {sys.argv[0]} [OPTIONS] CONFIG\n")
sys.stderr.write(f"Try '{sys.argv[0]} --help' for help.\n\n")
sys.stderr.write("Error: No such option: --learning-rte Did you mean --learning-rate?\n")
sys.exit(2)
