"""The worker's side of a recovery, in which another rank has failed and this process survives.

    the agent sets LEAVE    a thread closes the group's connections (`_Watch`), so that pending
                            collectives fail and no optimizer takes another step; the exception
                            leaves the user's function
    `_leave` sets LEFT      this process has dropped the group and everything that the function held
    the agent sets JOIN     the variables for the next group are in a file, and the function is
                            called again

core/workers/shared_words defines LEAVE, LEFT and JOIN. docs/decisions/0028-survivors.md explains
why the connections are closed from this side.
"""

import contextlib
import gc
import json
import os
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

from relight.core.diagnosis import blame
from relight.core.workers import shared_words as words
from relight.worker import replicas
from relight.worker.replicas import Generation

T = TypeVar("T")


class GroupBrokenError(RuntimeError):
    """Raised if another rank has failed before this rank's optimizer takes a step."""


_CANNOT_STAY = (
    "another rank has failed, and this rank's optimizer may have used data of an aborted collective"
)

_NCCL = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1",
    "TORCH_FR_BUFFER_SIZE": "0",
}
"""Without these settings, NCCL's watchdog would end this process as soon as it detects that a peer
has exited. Launchers, including this one, set the first variable to 1. Without the other variables,
the watchdog would look up the source lines of the failed collective for 5 s, and then sleep for a
minute while the flight recorder writes its dump. `destroy_process_group` would wait for that (torch
2.11).
"""
_WATCH_S = 0.005
"""The interval between the thread's checks for a failed rank."""
_LOOKS = 20
"""The thread reads the store and aborts communicators again after this many checks."""
_WAIT_S = 0.001
"""How often a process outside a group checks whether the next group has formed."""
_STORE_S = 2.0
"""How long the group's store may take to respond."""


def run(page: memoryview, function: Callable[[Generation], T]) -> T:
    """Call a function in each generation that includes this process, until it returns.

    Args:
        page: the memory that this process shares with the agent.
        function: the function, which receives the generation as its argument.

    Raises:
        Exception: the exception that the function raised, if no other rank is to blame.
    """
    watch = _Watch(page)
    has_survived = False
    os.environ.update(_NCCL)
    # Objects that exist now will survive. They are excluded from the garbage collection in
    # `_leave`, which then takes microseconds. With torch's modules, it would otherwise take 0.1 s
    # or more.
    was_frozen = gc.get_freeze_count() > 0
    gc.freeze()
    try:
        while True:
            watch.generation = generation = Generation(
                has_survived, watch.hook_optimizers, keeps_buffers=watch.has_stepped
            )
            replicas.current = generation
            try:
                result = function(generation)
            except Exception as error:
                # Code that has used undefined data from an aborted collective may raise any
                # exception.
                is_victim = watch.has_aborted and _must_leave(page)
                if not (is_victim or (_is_group_error(error) and _is_notified(page))):
                    raise
                if not watch.can_abort():
                    raise GroupBrokenError(_CANNOT_STAY) from error
            else:
                # The order matters. This rank sets INSIDE before it reads LEAVE. The agent does the
                # opposite and writes LEAVE first, so afterwards it sees that this rank has
                # finished.
                page[words.INSIDE] = 2
                if not _must_leave(page):
                    generation.check_shared()
                    return result
                page[words.INSIDE] = 1
                del result
                if not watch.can_abort():
                    raise GroupBrokenError(_CANNOT_STAY)
            addresses = watch.pause()
            generation.broke()
            _leave(page, addresses)
            _join(page)
            has_survived = True
            watch.resume()
    finally:
        watch.end()
        replicas.current = None
        if not was_frozen:  # in a warm worker, objects have been frozen before
            gc.unfreeze()


def _must_leave(page: memoryview) -> bool:
    return page[words.LEAVE] > page[words.LEFT]


def _is_notified(page: memoryview) -> bool:
    """Return whether the agent reports that a rank has failed. Wait up to RELIGHT_RECOVERY seconds
    for this report.
    """
    end = time.monotonic() + float(os.environ["RELIGHT_RECOVERY"])
    while not _must_leave(page) and time.monotonic() < end:
        time.sleep(_WAIT_S)
    return _must_leave(page)


def _is_group_error(error: BaseException | None) -> bool:
    """Return whether an exception, or one of its causes, was raised because the group is broken."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        kinds = {kind.__name__ for kind in type(error).__mro__}
        if kinds & {"DistError", "GroupBrokenError"} or (
            "RuntimeError" in kinds and blame.blames_peer(str(error))
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def _leave(page: memoryview, addresses: Collection[bytes]) -> None:
    """Drop the group, and notify the agent. The argument `addresses` contains the addresses of the
    group's gloo processes.
    """
    count = page[words.LEAVE]
    dist = _distributed()
    if dist is not None:
        abort_nccl()
        sever(addresses or _addresses())
        # The group may be only partly created, or partly destroyed.
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
    gc.collect()  # frees wrappers in cycles, whose hooks would run in the next backward pass
    page[words.CALLS] = 0  # new ranks also start counting at 0
    page[words.LEFT] = count


def _join(page: memoryview) -> None:
    """Wait for the next group, and set its environment variables."""
    count = page[words.LEFT]
    while page[words.JOIN] != count:
        time.sleep(_WAIT_S)
    path = os.environ["TORCHELASTIC_ERROR_FILE"] + words.VARIABLES_SUFFIX
    with open(path) as file:
        os.environ.update(json.load(file))
    page[words.FIRST_AT] = 0  # the next generation has not taken its first step yet
    page[words.JOINED] = count


class _Watch:
    """A thread that makes a broken group's collectives fail, and a hook that prevents optimizers
    from using their undefined results.
    """

    def __init__(self, page: memoryview) -> None:
        self._page = page
        self.generation: Generation | None = None
        self._hook: Any = None
        self.has_stepped = False
        """Whether an optimizer has called the hook. Only torch's optimizers call it."""
        self._lock = threading.Lock()
        """Held while connections are being closed, and while the thread must not close any."""
        self._is_over = threading.Event()
        self._paused = False
        self._addresses: frozenset[bytes] = frozenset()
        """The addresses in the group when they were last read. The group's store may have failed
        together with the failed node.
        """
        self._has_read = False
        self._is_captured = False
        """Whether a CUDA graph contains an optimizer step. Replaying the graph skips the hook."""
        self.has_aborted = False
        """Whether the collectives of this generation may have left undefined data."""
        threading.Thread(target=self._run, name="relight recovery", daemon=True).start()

    def pause(self) -> Collection[bytes]:
        """Stop closing connections. Wait until no connection is being closed, and return the known
        addresses of gloo's processes.
        """
        with self._lock:
            self._paused = True
            known, self._addresses, self._has_read = self._addresses, frozenset(), False
        return known

    def resume(self) -> None:
        """Start watching the next group."""
        with self._lock:
            self._paused = self.has_aborted = False

    def end(self) -> None:
        """Stop the thread, and remove the hook."""
        self._is_over.set()
        self.generation = None  # it holds the groups, which must end before the interpreter does
        if self._hook is not None:
            self._hook.remove()

    def can_abort(self) -> bool:
        """Return whether collectives may be aborted. NCCL's collectives may only be aborted if the
        hook is called for each optimizer step, because otherwise undefined data could reach the
        weights. If collectives can't be aborted, this rank fails, or is stopped after the time
        limit, and is then restarted.
        """
        is_training = self.generation is not None and self.generation.is_complete
        sees_steps = self.has_stepped and not self._is_captured
        return sees_steps or not is_training or not has_nccl()

    def hook_optimizers(self) -> None:
        """Make torch call `_before_step` before each optimizer step."""
        module = sys.modules.get("torch.optim.optimizer")
        if module is not None and self._hook is None:
            self._hook = module.register_optimizer_step_pre_hook(self._before_step)

    def _before_step(self, *_: object) -> None:
        """Wait for the gradients, and raise an exception if they may come from an aborted
        collective.

        A process runs ahead of its GPU. If it didn't wait, the optimizer's kernels would be queued
        behind a collective that NCCL aborts. An aborted collective leaves undefined data, and
        doesn't report an error.
        """
        self.has_stepped = True
        if has_nccl():
            cuda = sys.modules["torch"].cuda
            if cuda.is_current_stream_capturing():
                self._is_captured = True
                return
            cuda.current_stream().synchronize()
        if _must_leave(self._page) and not self._paused:
            raise GroupBrokenError("another rank has failed; this step will be repeated")
        if self.generation is not None:
            self.generation.before_step()
            self.generation.optimizer_steps += 1

    def _run(self) -> None:
        looks = 0
        while not self._is_over.wait(_WATCH_S):
            with self._lock:
                if self._paused:
                    looks = 0
                elif not _must_leave(self._page):
                    if not self._has_read and self._page[words.FIRST_AT]:
                        self._read()
                else:
                    if looks % _LOOKS == 0 and has_nccl() and self.can_abort():
                        self.has_aborted = True
                        abort_nccl()
                    looks += 1
                    # The script may have created more groups in the meantime. Try the known
                    # addresses first, because connecting to a store that no longer exists takes
                    # time.
                    if not self._addresses or looks == _LOOKS:
                        self._read()
                    # This is repeated, because the main thread may be about to open a new
                    # connection.
                    sever(self._addresses)

    def _read(self) -> None:
        self._has_read = True
        self._addresses = frozenset((*self._addresses, *_addresses()))


def _distributed() -> Any:
    """Return torch.distributed, if the script has imported it."""
    return sys.modules.get("torch.distributed")


def has_nccl() -> bool:
    """Return whether any process group uses NCCL."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:  # torch was built without support for distributed training
        return False
    configs = list(c10d._world.pg_backend_config.values())
    return any("nccl" in config for config in configs)


def abort_nccl() -> None:
    """Abort NCCL's communicators, which ends their pending collectives. The results of these
    collectives are undefined.

    This function works like torch's `_abort_process_group` (2.6 to 2.13), but does not remove the
    process groups, which belong to the main thread. Several communicators are aborted as one NCCL
    group, because they could wait for each other if they were aborted one at a time
    (pytorch/pytorch#119797).
    """
    dist = _distributed()
    if not has_nccl():
        return
    device = sys.modules["torch"].device("cuda")
    # The main thread may be creating or destroying a group at the same time. In that case, this
    # thread tries again.
    with contextlib.suppress(Exception):
        world = dist.distributed_c10d._world
        groups = [group for group, config in world.pg_backend_config.items() if "nccl" in config]
        backend = groups[0]._get_backend(device)
        backend._group_start()
        try:
            for group in sorted(groups, key=lambda group: str(world.pg_names[group]), reverse=True):
                group.abort()
        finally:
            backend._group_end()


def _addresses() -> Collection[bytes]:
    """Return the values that gloo's processes have exchanged through the group's store. Without a
    store, the collection is empty.

    Each value contains the address at which one process accepts connections
    (gloo/transport/tcp/address.cc).
    """
    dist, port = _distributed(), os.environ.get("MASTER_PORT", "")
    if dist is None or not port.isdecimal():
        return ()
    from datetime import timedelta

    try:
        store = dist.TCPStore(
            os.environ.get("MASTER_ADDR", ""), int(port), is_master=False, wait_for_workers=False,
            timeout=timedelta(seconds=_STORE_S),
        )  # fmt: skip
        keys = [key for key in store.list_keys() if "//cpu//" in key]
        return store.multi_get(keys) if keys else ()
    except Exception:  # the agent has closed the store, or it is a different kind of store
        return ()


def sever(addresses: Collection[bytes]) -> int:
    """Shut down this process's connections to the group's store and to other gloo processes, and
    return how many there were. Other connections are not affected.

    Args:
        addresses: the values that gloo's processes have written to the store.
    """
    store_port = os.environ.get("MASTER_PORT", "")
    own = list(_connections())
    count = 0
    for connection in own:
        with connection:
            try:
                ends = connection.getsockname(), connection.getpeername()
            except OSError:
                continue  # the socket is listening, or has been closed
            family = connection.family
            of_group = any(_packed(family, end) in value for end in ends for value in addresses)
            if of_group or str(ends[1][1]) == store_port:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def _connections() -> Iterator[socket.socket]:
    for name in os.listdir("/dev/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            found = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # the socket was closed in the meantime
        if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
            yield found
        else:
            found.close()


def _packed(family: int, address: tuple[Any, ...]) -> bytes:
    """Return an address in the format of sockaddr_in or sockaddr_in6 (ip(7), ipv6(7))."""
    ip = socket.inet_pton(family, address[0].partition("%")[0])
    flow = struct.pack("!I", address[2]) if family == socket.AF_INET6 else b""
    return struct.pack("=H", family) + struct.pack("!H", address[1]) + flow + ip
