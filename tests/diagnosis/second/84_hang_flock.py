# truth: rank=all line=7 kind=hang says=ranks 0-1
# run: bash -c 'exec 9>lock84.tmp; flock 9; {L} --nproc-per-node=2 --hang-timeout=6 {C}/84_hang_flock.py 9>&-; rm -f lock84.tmp'
import fcntl, time
# a process outside of the job (here: the shell around it) holds the lock of the cache
def locked_cache():
    f = open("lock84.tmp", "a")
    fcntl.flock(f, fcntl.LOCK_EX)
    return f
time.sleep(0.5)
with locked_cache():
    print("the cache is read")
