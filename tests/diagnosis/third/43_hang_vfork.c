// truth: rank=1 line=0 kind=hang says=rank 1
// run: cc -g -o sim {C}/43_hang_vfork.c && {L} --no-python --nproc-per-node=2 --hang-timeout=12 ./sim
// also: vfork
#include <stdlib.h>
#include <unistd.h>
int main(void) {
    if (atoi(getenv("RANK")) == 1) {
        if (vfork() == 0) {
            pause();
            _exit(0);
        }
    }
    pause();
    return 0;
}
