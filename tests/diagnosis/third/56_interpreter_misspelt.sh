# truth: rank=all line=0 kind=usage says=/usr/bin/pyhton3
# run: printf '#!/usr/bin/pyhton3\nprint(1)\n' > run.sh && chmod +x run.sh && {L} --no-python --nproc-per-node=2 ./run.sh

