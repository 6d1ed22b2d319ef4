// truth: rank=1 line=8 kind=signal says=main: Assertion
// also: SIGABRT
// never: (?i)\brank 0 (?:was|raised|exited)
// run: cc -o sim {C}/61_c_program.c && {L} --no-python --nproc-per-node=2 ./sim
#include <assert.h>
#include <stdlib.h>
#include <unistd.h>
int main(void) { assert(atoi(getenv("RANK")) != 1); sleep(60); return 0; }
