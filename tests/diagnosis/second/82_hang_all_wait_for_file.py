# truth: rank=all line=6 kind=hang says=ranks 0-2
# run: {L} --nproc-per-node=3 --hang-timeout=6 {C}/82_hang_all_wait_for_file.py
import os, time
def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.5)
print("waiting for the dataset to be unpacked")
wait_for("/nonexistent/dataset/.done")
