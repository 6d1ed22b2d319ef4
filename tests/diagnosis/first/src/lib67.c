/* A call that the kernel does not interrupt, as a write to an NFS server that does not answer: the
   parent of a vfork is in state D until its child ends. */
#include <unistd.h>

void checkpoint_to_nfs(void) {
    if (vfork() == 0) {
        sleep(100000);
        _exit(0);
    }
}
