"""The workers' store answers torch's client in the same way as torch's own server.

A test that uses `store` runs against both servers, and so expects relight to behave like torch. If
relight differs on purpose, the test says how and why.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
import store_server as wire
from conftest import LIMIT_S
from store_server import Peer, StoreServer, i64, keys, text, u64
from warm_torch import WarmTorch

PATIENCE = timedelta(seconds=LIMIT_S)
BRIEF = timedelta(milliseconds=5)

Client = Any  # torch.distributed.Store


@pytest.fixture(scope="session")
def dist() -> ModuleType:
    import torch.distributed

    return torch.distributed


@pytest.fixture
def relight() -> Iterator[int]:
    """Return the port of a new relight store."""
    server = StoreServer()
    yield server.port
    server.close(connected=True)


@pytest.fixture
def torch(dist: ModuleType) -> Iterator[int]:
    """Return the port of a new torch store."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield server.port
    del server


@pytest.fixture(
    params=["relight", pytest.param("torch", marks=[pytest.mark.slow, pytest.mark.needs_torch])]
)
def store(request: pytest.FixtureRequest) -> int:
    """Return the port of a new store, relight's or torch's."""
    port: int = request.getfixturevalue(request.param)
    return port


WAKING = {
    "set": wire.SET + text(b"k") + text(b""),
    "multi_set": wire.MULTI_SET + u64(2) + text(b"other") + text(b"") + text(b"k") + text(b""),
    "add": wire.ADD + text(b"k") + i64(0),
    "append": wire.APPEND + text(b"k") + text(b""),
    "compare_set": wire.COMPARE_SET + text(b"k") + text(b"") + text(b"v"),
    "compare_set that sets nothing": wire.COMPARE_SET + text(b"k") + text(b"x") + text(b"v"),
    "queue_push": wire.PUSH + text(b"k") + text(b""),
    "barrier": wire.BARRIER + text(b"k") + i64(1),
}


@pytest.mark.parametrize("query", WAKING)
def test_every_operation_that_creates_a_key_wakes_waiting_clients(store: int, query: str) -> None:
    """A wait ends with the first operation that creates its last missing key."""
    with Peer(store) as waiter, Peer(store) as other, Peer(store) as setter:
        setter.set(b"there", b"")
        waiter.wait(b"there", b"first", b"k", b"k")
        other.wait(b"else")
        setter.set(b"first", b"")
        waiter.sync()
        setter.send(WAKING[query])
        assert waiter.read(1) == wire.STOP_WAITING
        waiter.sync()
        other.sync()


def test_cancelled_wait_gets_no_response_later(store: int) -> None:
    """The keys may be set after CANCEL_WAIT. A new wait for them ends immediately."""
    with Peer(store) as waiter, Peer(store) as setter:
        waiter.wait(b"a", b"b")
        assert waiter.ask(wire.CANCEL, 1) == wire.WAIT_CANCELED
        assert waiter.ask(wire.CANCEL, 1) == wire.WAIT_CANCELED
        setter.set(b"a", b"")
        setter.set(b"b", b"")
        waiter.sync()
        assert waiter.ask(wire.WAIT + keys(b"a", b"b"), 1) == wire.STOP_WAITING


def test_key_that_was_set_and_deleted_still_satisfies_a_wait(store: int) -> None:
    """Deleting a key neither ends a wait for it nor undoes that it was set."""
    with Peer(store) as waiter, Peer(store) as setter:
        waiter.wait(b"a", b"b")
        assert setter.ask(wire.DELETE + text(b"a"), 8) == i64(0)
        setter.set(b"a", b"")
        assert setter.ask(wire.DELETE + text(b"a"), 8) == i64(1)
        waiter.sync()
        setter.set(b"b", b"")
        assert waiter.read(1) == wire.STOP_WAITING
        waiter.wait(b"a", b"b")


def test_push_wakes_one_client_that_waits_only_for_that_queue(store: int) -> None:
    """The longest-waiting client is first. A client that also waits for other keys isn't woken."""
    with Peer(store) as both, Peer(store) as first, Peer(store) as second, Peer(store) as pusher:
        both.wait(b"q", b"other")
        first.wait(b"q")
        second.wait(b"q")
        pusher.send(wire.PUSH + text(b"q") + text(b"1"))
        assert first.read(1) == wire.STOP_WAITING
        second.sync()
        both.sync()
        pusher.set(b"other", b"")
        assert both.read(1) == wire.STOP_WAITING
        assert first.ask(wire.POP + text(b"q"), 17) == i64(1) + text(b"1")
        pusher.send(wire.PUSH + text(b"q") + text(b"2"))
        assert second.read(1) == wire.STOP_WAITING


def test_barrier_releases_all_workers_on_last_arrival(store: int) -> None:
    """The counter is an ordinary key, and a worker that arrives late doesn't wait."""
    query = wire.BARRIER + text(b"b") + i64(3)
    with Peer(store) as first, Peer(store) as second, Peer(store) as third, Peer(store) as late:
        for peer in (first, second):
            peer.send(query)
            peer.sync()
        assert late.ask(wire.WAIT + keys(b"b"), 1) == wire.STOP_WAITING
        assert third.ask(query, 1) == wire.STOP_WAITING
        assert first.read(1) == wire.STOP_WAITING
        assert second.read(1) == wire.STOP_WAITING
        assert late.ask(query, 1) == wire.STOP_WAITING
        assert late.get(b"b") == b"4"


def test_wait_from_disconnected_client_is_discarded(store: int) -> None:
    """The value that would have woken that client goes to one that came later."""
    with Peer(store) as waiter, Peer(store) as pusher:
        for leave in (Peer.close, Peer.reset):
            gone = Peer(store)
            gone.wait(b"q", b"k")
            leave(gone)
        waiter.wait(b"q")
        pusher.send(wire.PUSH + text(b"q") + text(b"v"))
        assert waiter.read(1) == wire.STOP_WAITING


def test_wait_treats_a_nonempty_queue_as_present(store: int, request: Any) -> None:
    """If another key is also missing, torch counts a non-empty queue as missing, and its server
    hangs until the next push.
    """
    with Peer(store) as waiter, Peer(store) as setter:
        setter.send(wire.PUSH + text(b"q") + text(b"v"))
        setter.sync()
        waiter.wait(b"q", b"k")
        setter.set(b"k", b"")
        if "torch" in request.node.name:
            waiter.sync()
            setter.send(wire.PUSH + text(b"q") + text(b"v"))
        assert waiter.read(1) == wire.STOP_WAITING


def test_wait_is_independent_of_earlier_waits(store: int, request: Any) -> None:
    """After being woken by a value, a client waits for other keys until they are set.

    Torch's server counts the next pushed value as one of those keys, so that its wait for `k` ends
    without `k`.
    """
    with Peer(store) as waiter, Peer(store) as pusher:
        waiter.wait(b"q")
        pusher.send(wire.PUSH + text(b"q") + text(b"1"))
        assert waiter.read(1) == wire.STOP_WAITING
        waiter.wait(b"k")
        pusher.send(wire.PUSH + text(b"q") + text(b"2"))
        pusher.sync()
        if "torch" not in request.node.name:
            waiter.sync()
            pusher.set(b"k", b"")
        assert waiter.read(1) == wire.STOP_WAITING


NUMBERS = {
    b"": None, b" ": None, b"+": None, b"-": None, b"abc": None, b"+-1": None, b"\0001": None,
    b"99999999999999999999": None, b"-9223372036854775809": None, b"\xd9\xa3": None,
    b" \t\n\v\f\r12": 12, b"12abc": 12, b"+3": 3, b"-3": -3, b"0x10": 0, b"1_0": 1, b"5\x006": 5,
    b"007": 7, b"1e3": 1, b"- 1": None, b"9223372036854775807": 2**63 - 1,
    b"-9223372036854775808": -(2**63),
}  # fmt: skip


@pytest.mark.parametrize("value", NUMBERS)
def test_add_parses_numbers_as_c_does(store: int, value: bytes) -> None:
    """Trailing text is ignored and sums wrap around. Anything else ends the connection."""
    number = NUMBERS[value]
    with Peer(store) as peer, Peer(store) as friend:
        friend.set(b"k", value)
        peer.send(wire.ADD + text(b"k") + i64(1))
        if number is None:
            assert peer.ended()
            assert friend.get(b"k") == value
        else:
            total = (number + 1 + 2**63) % 2**64 - 2**63
            assert peer.number() == total
            assert friend.get(b"k") == b"%d" % total


def connect(dist: ModuleType, port: int) -> Client:
    return dist.TCPStore("127.0.0.1", port, wait_for_workers=False, timeout=PATIENCE)


KEYS = ["a", "b", "c", "a/b", "", "\0", "ключ", b"\xff\xfe", "long" * 2000]
VALUES = [
    "",
    "1",
    "-7",
    " 12abc",
    "word",
    b"\x00\xff",
    b"\n",
    "9223372036854775807",
    b"x" * 300_000,
]


def some_operation(choose: random.Random) -> tuple[str, Callable[[Client], object]]:
    """Choose an operation and its arguments. Missing keys are only waited for briefly."""
    key, value, other = choose.choice(KEYS), choose.choice(VALUES), choose.choice(VALUES)
    several = choose.sample(KEYS, choose.randint(0, 4))
    amount = choose.choice([0, 1, -5, 2**40, 2**63 - 1, -(2**63)])

    def once_there(names: list[Any], act: Callable[[Client], object]) -> Callable[[Client], object]:
        return lambda store: act(store) if store.check(names) else store.wait(names, BRIEF)

    def unless_prefixed(act: Callable[[Client], object]) -> Callable[[Client], object]:
        # A PrefixStore's barrier isn't the server's, but is built from `add` and `wait`.
        return lambda store: "PrefixStore" in str(type(store)) or act(store)

    usual: dict[str, Callable[[Client], object]] = {
        "set": lambda store: store.set(key, value),
        "get": once_there([key], lambda store: store.get(key)),
        "add": lambda store: store.add(key, amount),
        "check": lambda store: store.check(several),
        "wait": once_there(several, lambda store: store.wait(several)),
        "compare_set": lambda store: store.compare_set(key, value, other),
        "append": lambda store: store.append(key, value),
        "multi_set": lambda store: store.multi_set(several, [value] * len(several)),
        "multi_get": once_there(several, lambda store: store.multi_get(several)),
        "delete_key": lambda store: store.delete_key(key),
        "num_keys": lambda store: store.num_keys(),
        "list_keys": lambda store: sorted(store.list_keys()),
        "queue_push": lambda store: store.queue_push(key, value),
        "queue_pop": once_there([key], lambda store: store.queue_pop(key)),
        "queue_pop at once": lambda store: store.queue_pop(key, False),
        "queue_len": lambda store: store.queue_len(key),
        "barrier": unless_prefixed(lambda store: store.barrier(key, -(2**63), PATIENCE)),
        "barrier of many": unless_prefixed(lambda store: store.barrier(key, 2**63 - 1, BRIEF)),
    }
    rare: dict[str, Callable[[Client], object]] = {
        "set a key too long": lambda store: store.set("k" * 8193, ""),
        "set a value too large": lambda store: store.set("k", b"x" * (2**23 + 1)),
        "set a large value": lambda store: store.set("k", b"x" * 2**23),
        "multi_set in vain": lambda store: store.multi_set(["a", "b"], ["1"]),
    }
    name = choose.choice(list(usual if choose.random() < 0.98 else rare))
    return f"{name} {key!r:.20} {value!r:.20} {several!r:.60}", (usual | rare)[name]


@pytest.mark.slow
@pytest.mark.needs_torch
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))]
)
def test_any_sequence_of_operations_gives_the_same_results_as_torch(
    dist: ModuleType, relight: int, torch: int, seed: int
) -> None:
    """The same operations return the same values and error types, and leave the same number of
    keys.
    """
    choose = random.Random(seed)
    clients: dict[int, list[Client]] = {}
    history: list[str] = []
    for _ in range(200):
        which = choose.randrange(4)
        name, operate = some_operation(choose)
        history.append(f"{which} {name}")
        answers = []
        for port in (relight, torch):
            if port not in clients:
                plain = connect(dist, port)
                prefixed = dist.PrefixStore("prefix", plain)
                nested = dist.PrefixStore("nested", prefixed)
                clients[port] = [plain, prefixed, nested, plain.clone()]
            try:
                client = clients[port][which]
                # Requests without an answer must be executed before another connection sends any.
                answers.append((operate(client), client.num_keys()))
            except Exception as error:
                answers.append(type(error).__name__)
                if isinstance(error, dist.DistNetworkError):
                    del clients[port]
        assert answers[0] == answers[1], "\n".join(history[-20:])


@pytest.mark.slow
@pytest.mark.needs_torch
def test_values_round_trip_regardless_of_size_and_number(dist: ModuleType, store: int) -> None:
    """This includes the largest values, 40 MiB in one answer, and 20,000 keys."""
    writer, reader = connect(dist, store), connect(dist, store)
    noise = random.Random(1)
    large = {f"large {number}": noise.randbytes(8 * 1024 * 1024) for number in range(5)}
    for key, value in large.items():
        writer.set(key, value)
    writer.num_keys()
    assert reader.multi_get(list(large)) == list(large.values())
    small = {f"small {number}": noise.randbytes(number % 9) for number in range(20_000)}
    writer.multi_set(list(small), list(small.values()))
    assert reader.multi_get(list(small)) == list(small.values())
    assert set(reader.list_keys()) == {*large, *small}
    for _ in range(3):
        reader.append("large 0", "+")
    assert writer.get("large 0") == large["large 0"] + b"+++"


@pytest.mark.slow
@pytest.mark.needs_torch
def test_concurrent_clients_lose_no_data(dist: ModuleType, store: int) -> None:
    """8 clients use counters, queues and barriers, and wait for their neighbours' keys."""
    clients, times = 8, 60

    def work(number: int) -> list[bytes]:
        client = dist.PrefixStore("job", connect(dist, store))
        plain = connect(dist, store)
        for turn in range(times):
            client.set(f"{turn} of {number}", str(turn))
            neighbour = client.get(f"{turn} of {(number + 1) % clients}")
            assert neighbour == str(turn).encode()
            client.add("count", turn)
        plain.barrier("all have counted", clients, PATIENCE)
        assert client.add("count", 0) == clients * sum(range(times))
        taken = []
        for turn in range(times):
            client.queue_push("queue", f"{number}/{turn}")
            while len(taken) <= turn:
                try:
                    taken.append(client.queue_pop("queue"))
                except dist.QueueEmptyError:
                    pass  # another client was faster
        client.barrier("all have taken", clients, PATIENCE)
        return taken

    with ThreadPoolExecutor(clients) as threads:
        taken = [value for values in threads.map(work, range(clients)) for value in values]
    assert Counter(taken) == Counter(
        f"{number}/{turn}".encode() for number in range(clients) for turn in range(times)
    )


@pytest.mark.slow
@pytest.mark.needs_torch
def test_wait_can_be_retried_after_timeout(dist: ModuleType, store: int) -> None:
    """After a client gives up, it can wait again on the same connection and gets an answer."""
    waiter, setter = connect(dist, store), connect(dist, store)
    for turn in range(5):
        key = f"key {turn}"
        with pytest.raises(dist.DistStoreError, match="timeout"):
            waiter.wait([key], BRIEF)
        with pytest.raises(dist.DistStoreError, match="timeout"):
            waiter.barrier(f"barrier {turn}", 2, BRIEF)
        with ThreadPoolExecutor(1) as thread:
            answer = thread.submit(waiter.get, key)
            setter.set(key, "there")
            assert answer.result() == b"there"
        setter.delete_key(key)
        assert not waiter.check([key])


TRAINING = r"""
import os, sys, datetime
import torch, torch.distributed as dist
import torch.distributed.checkpoint as checkpoint

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
patience = datetime.timedelta(seconds=180)

def train(turn):
    members = [0, 1], [2, 3], [0, 2, 3]
    for group in (None, *map(dist.new_group, members)):
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            total = torch.ones(3)
            dist.all_reduce(total, group=group)
            assert total.tolist() == [dist.get_world_size(group)] * 3
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set("key", b"\0binary\xff")
    assert store.get("key") == b"\0binary\xff"
    store.add("count", rank)
    dist.monitored_barrier()
    assert store.add("count", 0) == 6
    store.queue_push("queue", str(rank))
    taken = [None] * world_size
    dist.all_gather_object(taken, store.queue_pop("queue").decode())
    assert sorted(taken) == list("0123")
    said = [turn if rank == 1 else None]
    dist.broadcast_object_list(said, src=1)
    assert said == [turn]
    saved, loaded = {"weights": torch.arange(1000.0) + turn}, {"weights": torch.zeros(1000)}
    checkpoint.save(saved, checkpoint_id=f"checkpoint {turn}")
    checkpoint.load(loaded, checkpoint_id=f"checkpoint {turn}")
    assert torch.equal(loaded["weights"], saved["weights"])
    dist.barrier()
    dist.destroy_process_group()

dist.init_process_group("gloo", timeout=patience)
train(0)
# Under the first names gloo would find the addresses of the group that is gone, as it does under
# torchrun.
store = dist.TCPStore(*address, wait_for_workers=False, timeout=patience)
store = dist.PrefixStore("second", store)
dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=patience)
train(1)
print("trained", rank)
"""


@pytest.mark.slow
@pytest.mark.needs_torch
def test_training_works_with_relight_store(warm_torch: WarmTorch) -> None:
    """4 workers use groups, barriers, objects, checkpoints and a second process group."""
    result = warm_torch.run(TRAINING, "--nproc-per-node=4")
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == [f"trained {rank}" for rank in range(4)]
