// truth: rank=1 line=0 kind=signal says=double free detected in tcache 2
// run: cc -w -o sim {C}/47_double_free_in_c.c && {L} --no-python --nproc-per-node=2 ./sim
// also: SIGABRT
#include <stdlib.h>
#include <unistd.h>
int main(void) {
    if (atoi(getenv("RANK")) == 1) {
        volatile char *buffer = malloc(64);
        free((void *)buffer);
        free((void *)buffer);
    }
    pause();
    return 0;
}
