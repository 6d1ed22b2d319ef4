// truth: rank=1 line=11 kind=signal says=Assertion
// also: SIGABRT
// never: (?i)(?<!not the )(?<!not a )\bcause\b(?:(?!rank)[^\n]){0,12}\brank (?:0)\b
// run: bash -c 'gcc -g -o prog90.tmp {C}/90_assert_in_c.c && {L} --no-python --nproc-per-node=2 ./prog90.tmp; rm -f prog90.tmp'
#include <assert.h>
#include <stdlib.h>
#include <unistd.h>
int main(void) {
    int rank = atoi(getenv("RANK")), columns = rank == 1 ? 5 : 4;
    usleep(500000);
    assert(columns == 4 && "the table has four columns");
    sleep(60);
    return 0;
}
