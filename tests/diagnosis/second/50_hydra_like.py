# truth: rank=all line=0 kind=usage says=Could not override 'model.depht'
# run: {L} --nproc-per-node=3 {C}/50_hydra_like.py  model.depht=12
import sys
# what hydra prints; its exit code is 1
sys.stderr.write("Could not override 'model.depht'.\nTo append to your config use +model.depht=12\n"
                 "Key 'depht' is not in struct\n    full_key: model.depht\n    object_type=dict\n\n"
                 "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n")
sys.exit(1)
