# truth: rank=1 line=19 kind=exception says=EOFError
# also: augmentation: bad jpeg
# never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
# run: {L} --nproc-per-node=2 {C}/31_multiprocessing_peer_eof.py
import multiprocessing as mp, os, time
rank = int(os.environ["RANK"])
def augment(conn):
    for i in range(5):
        if i == 3:
            raise RuntimeError("augmentation: bad jpeg 0000003.jpg")
        conn.send(i)
if __name__ == "__main__":
    here, there = mp.Pipe()
    if rank == 1:
        p = mp.get_context("fork").Process(target=augment, args=(there,), daemon=True)
        p.start()
        there.close()
        for i in range(5):
            image = here.recv()
            time.sleep(0.1)
    time.sleep(60)
