"""Leader locks in etcd: lost responses, lost members, and API versions."""

import json
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import LIMIT_S
from etcd_server import EtcdCluster, EtcdServer, wait_for

from relight.rendezvous.leader_lock import NOBODY, LeaderLock, Record
from rendezvous.claims import Claim, Place, claim, overlaps, shorten
from rendezvous.proxy import FINE, Fate, Proxy, bad_luck

pytestmark = pytest.mark.needs_etcd

New = Callable[..., LeaderLock]
LONG_S = 60.0


@pytest.fixture
def place(server: EtcdServer) -> Place:
    return Place("etcd", server.endpoint, f"job {random.randbytes(8).hex()}")


@pytest.fixture
def proxy(server: EtcdServer) -> Iterator[Proxy]:
    with Proxy(server.endpoint) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("cluster"), 3) as cluster:
        yield cluster


@pytest.fixture
def cluster(three: EtcdCluster) -> EtcdCluster:
    """Three members that are all running, whatever the previous test did."""
    for index in set(range(3)) - set(three.running()):
        three.start(index)
    three.wait_healthy()
    return three


def hold(register: LeaderLock, value: str, ttl_s: float = LONG_S) -> Record:
    """Request the lock, and retry while it is unreachable."""

    def ask() -> Record | None:
        try:
            return register.hold(value, ttl_s)
        except OSError:
            return None

    return wait_for(ask, "an answer", LIMIT_S)


# Lost responses.


@pytest.mark.parametrize("how", [Fate(lose_reply=True), Fate(lose_request=True)])
@pytest.mark.parametrize("number", range(6))
def test_losing_any_single_response_does_not_change_the_holder(
    place: Place, proxy: Proxy, registers: New, number: int, how: Fate
) -> None:
    """Whichever response is lost, the holder keeps the lock, and nobody else acquires it."""
    first, second = registers(place._replace(endpoint=proxy.endpoint)), registers(place)
    fates = [FINE] * number + [how]
    proxy.choose = lambda request: fates.pop(0) if fates else FINE
    mine = hold(first, "first")
    assert (mine.value, mine.ours) == ("first", True)
    for _ in range(number):  # the lost response may belong to a renewal
        assert hold(first, "first") == mine
        assert second.hold("second", LONG_S) == mine._replace(ours=False)


@pytest.mark.parametrize("how", [Fate(lose_reply=True), Fate(lose_request=True)])
@pytest.mark.parametrize("number", range(5))
def test_lock_recognizes_its_own_record_after_etcd_outage(
    place: Place, proxy: Proxy, registers: New, number: int, how: Fate
) -> None:
    """While unreachable, the lock raises an error; afterwards it recognizes its own record."""
    first, second = registers(place._replace(endpoint=proxy.endpoint)), registers(place)
    fates = [FINE] * number
    proxy.choose = lambda request: fates.pop(0) if fates else how
    with pytest.raises(OSError, match=f"etcd at {proxy.endpoint}: it closed the connection"):
        while True:
            first.hold("first", LONG_S)
    seen = second.hold("", LONG_S)
    proxy.choose = lambda request: FINE
    mine = first.hold("first", LONG_S)
    assert mine.ours
    assert seen in (NOBODY, mine._replace(ours=False))
    assert second.hold("second", LONG_S) == mine._replace(ours=False)
    first.release()
    assert second.hold("second", LONG_S).ours


def test_change_takes_effect_even_if_response_is_lost(
    place: Place, proxy: Proxy, registers: New
) -> None:
    """If the response to a new value or time is lost, the change still takes effect."""
    first, second = registers(place._replace(endpoint=proxy.endpoint)), registers(place)
    mine = first.hold("one", LONG_S)
    for number, value in enumerate(("two", "three", "four", "five", "six")):
        fates = [FINE] * number + [Fate(lose_reply=True)] * 2
        proxy.choose = lambda request, fates=fates: fates.pop(0) if fates else FINE
        assert hold(first, value, LONG_S - number) == mine._replace(value=value)
        proxy.choose = lambda request: FINE
        assert first.hold(value, LONG_S) == mine._replace(value=value)
        assert second.hold("other", LONG_S) == mine._replace(value=value, ours=False)


def test_repeated_eviction_does_not_remove_the_successor(
    place: Place, proxy: Proxy, registers: New
) -> None:
    """The response to the first eviction was lost."""
    first, second = registers(place), registers(place._replace(endpoint=proxy.endpoint))
    dead = first.hold("first", LONG_S)
    assert second.hold("second", LONG_S) == dead._replace(ours=False)
    deletes = (b"DELETE", b"delete_range")
    proxy.choose = lambda request: Fate(lose_reply=any(word in request for word in deletes))
    with pytest.raises(OSError, match="closed the connection"):
        second.evict(dead)
    alive = first.hold("first", LONG_S)
    proxy.choose = lambda request: FINE
    second.evict(dead)
    assert second.hold("second", LONG_S) == alive._replace(ours=False)


def test_delayed_eviction_does_not_remove_a_reacquired_lock(
    place: Place, proxy: Proxy, registers: New
) -> None:
    """A holder that acquires the lock again before the eviction arrives keeps it."""
    first, second = registers(place), registers(place._replace(endpoint=proxy.endpoint))
    dead = first.hold("first", LONG_S)
    again: list[Record] = []

    def overtake(request: bytes) -> Fate:
        if not again and (b"DELETE" in request or b"delete_range" in request):
            first.release()
            again.append(first.hold("first", LONG_S))
        return FINE

    proxy.choose = overtake
    second.evict(dead)
    assert second.hold("second", LONG_S) == again[0]._replace(ours=False)


def test_request_that_arrives_late_expires_after_its_ttl(
    place: Place, proxy: Proxy, registers: New
) -> None:
    """A request may arrive after its sender has given up and released the lock. It then holds the
    lock no longer than its time to live.
    """
    late, other = registers(place._replace(endpoint=proxy.endpoint)), registers(place)
    late.hold("", LONG_S)
    writes = ("/kv/txn", "PUT ")
    proxy.choose = lambda request: Fate(
        late_s=1.5 if any(word.encode() in request for word in writes) else 0
    )
    with pytest.raises(OSError, match="no response within"):
        late.hold("late", 1.0)
    late.release()
    wait_for(lambda: other.hold("other", LONG_S).ours, "the register")
    mine = other.hold("other", LONG_S)
    time.sleep(1.5)  # by now, the late request has been tried
    assert other.hold("other", LONG_S) == mine
    assert mine.ours


def test_late_release_does_not_end_a_later_hold(place: Place, proxy: Proxy, registers: New) -> None:
    """A request to release the lock may arrive after its sender has taken the lock again."""
    register = registers(place._replace(endpoint=proxy.endpoint))
    register.hold("first", 1.0)
    proxy.choose = lambda request: Fate(late_s=1.5 if b"/kv/txn" in request else 0)
    with pytest.raises(OSError, match="no response within"):
        register.release()
    proxy.choose = lambda request: Fate()
    wait_for(lambda: register.hold("second", LONG_S).ours, "the register")
    mine = register.hold("second", LONG_S)
    time.sleep(1.5)  # by now, the late request has been carried out
    assert register.hold("second", LONG_S) == mine


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_lock_never_has_two_holders_on_an_unreliable_network(
    place: Place, server: EtcdServer, registers: New, seed: int
) -> None:
    """Requests are lost, delayed, and duplicated, and holders stall and release the lock."""
    ttl_s, end = 1.0, time.monotonic() + 8
    made: list[Claim] = []
    released: list[tuple[str, float]] = []

    def compete(number: int) -> None:
        rng = random.Random(seed * 100 + number)
        with Proxy(server.endpoint) as proxy:
            proxy.choose = bad_luck(rng.getrandbits(32), 0.15, 1.2)
            who, turn, count = f"{number}.0", 0, 0
            register = registers(place._replace(endpoint=proxy.endpoint))
            while time.monotonic() < end:
                try:
                    _, mine = claim(register, who, ttl_s)
                    if mine is not None:
                        made.append(mine)
                        count += 1
                    if count == 4:
                        released.append((who, time.monotonic()))
                        turn, count = turn + 1, 0
                        who = f"{number}.{turn}"
                        register.release()
                        time.sleep(0.3)
                except OSError:
                    pass
                time.sleep(1.2 if rng.random() < 0.05 else rng.random() * 0.1)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(compete, number) for number in range(4)]:
            done.result()
    assert len({each.who for each in made}) > 2
    claims = made
    for who, at in released:
        claims = shorten(claims, who, at)
    for one, two in overlaps(claims):  # the same holder may use two names
        assert one.who.split(".")[0] == two.who.split(".")[0], (one, two)


# Members.


@pytest.mark.slow
def test_holder_keeps_lock_after_loss_of_any_etcd_member(
    cluster: EtcdCluster, registers: New
) -> None:
    """Whichever member is lost and returns, the holder keeps the lock and can verify that."""
    place = Place("etcd", cluster.endpoint, f"member {random.random()}")
    first, second = registers(place), registers(place)
    mine = first.hold("first", LONG_S)
    assert second.hold("second", LONG_S) == mine._replace(ours=False)
    for index in range(3):
        cluster.kill(index)
        assert hold(first, "first") == mine
        assert hold(second, "second") == mine._replace(ours=False)
        cluster.start(index)
        cluster.wait_healthy()


@pytest.mark.slow
def test_holder_keeps_lock_after_loss_of_the_etcd_leader(
    cluster: EtcdCluster, registers: New
) -> None:
    """The next election succeeds."""
    place = Place("etcd", cluster.endpoint, f"leader {random.random()}")
    first, second = registers(place), registers(place)
    mine = first.hold("first", LONG_S)
    leader = cluster.leader()
    cluster.kill(leader)
    assert hold(first, "first") == mine
    hold(second, "second")
    second.evict(mine)
    assert hold(second, "second").ours
    assert cluster.leader() != leader


@pytest.mark.slow
def test_frozen_etcd_member_delays_request_by_only_one_timeout(
    cluster: EtcdCluster, registers: New
) -> None:
    """If a running member does not respond, another one is asked after a single timeout."""
    place = Place("etcd", cluster.endpoint, f"frozen {random.random()}")
    first = registers(place)
    mine = first.hold("first", LONG_S)
    leader = cluster.leader()
    follower = next(index for index in range(3) if index != leader)
    first.close()
    asked = registers(place._replace(endpoint=_rotated(cluster, follower)))
    assert asked.hold("", LONG_S) == mine._replace(ours=False)
    cluster.pause(follower)
    try:
        assert asked.hold("", LONG_S) == mine._replace(ours=False)  # no error
        assert first.hold("first", LONG_S) == mine
    finally:
        cluster.resume(follower)


@pytest.mark.slow
def test_holder_keeps_lock_after_restart_of_all_etcd_members(
    cluster: EtcdCluster, registers: New
) -> None:
    """While etcd is down, every call raises an error; if it returns in time, the holder remains."""
    place = Place("etcd", cluster.endpoint, f"all {random.random()}")
    first, second = registers(place), registers(place)
    mine = first.hold("first", LONG_S)
    for index in range(3):
        cluster.kill(index)
    end = time.monotonic() + 3
    while time.monotonic() < end:
        for register in (first, second):
            with pytest.raises(OSError, match="refused") as caught:
                register.hold("x", LONG_S)
            assert all(address in str(caught.value) for address in cluster.endpoint.split(","))
        time.sleep(0.1)
    for index in range(3):
        cluster.start(index)
    cluster.wait_healthy()
    assert hold(first, "first") == mine
    assert hold(second, "second") == mine._replace(ours=False)


@pytest.mark.slow
def test_etcd_member_without_majority_does_not_grant_the_lock(
    cluster: EtcdCluster, registers: New
) -> None:
    """A member without a majority neither grants the lock nor reports its holder."""
    place = Place("etcd", cluster.endpoint, f"minority {random.random()}")
    first = registers(place)
    first.hold("first", LONG_S)
    cluster.kill(0)
    cluster.kill(1)
    for register in (first, registers(place)):
        for value in ("", "x"):
            with pytest.raises(OSError, match=f"etcd at 127.0.0.1:{cluster.ports[2]}"):
                register.hold(value, LONG_S)


def _rotated(cluster: EtcdCluster, first: int) -> str:
    """Return the endpoint with a different member first."""
    parts = cluster.endpoint.split(",")
    return ",".join(parts[first:] + parts[:first])


# API versions.


def test_etcd_and_etcd_v2_backends_share_one_record(server: EtcdServer, registers: New) -> None:
    """Some settings of etcd and etcd-v2 have different names, but both use the v3 API."""
    mine = registers(Place("etcd", server.endpoint, "both")).hold("one", LONG_S)
    other = registers(Place("etcd-v2", server.endpoint, "both"))
    assert other.hold("other", LONG_S) == mine._replace(ours=False)


def test_own_address_is_taken_from_etcd_connection(server: EtcdServer, registers: New) -> None:
    register = registers(Place("etcd", server.endpoint, "address"))
    assert register.own_address == ""
    register.hold("", LONG_S)
    assert register.own_address == "127.0.0.1"


def test_keys_are_under_etcd_prefix_and_deleted_with_the_record(
    server: EtcdServer, registers: New
) -> None:
    """Operators can read the keys, which are deleted together with the record."""
    register = registers(Place("etcd", server.endpoint, "my job"), etcd_prefix="/my/jobs/")
    register.hold("10.0.0.1:29400", LONG_S)
    key, text = server.ctl("get", "--prefix", "/my/").splitlines()
    assert key == "/my/jobs/my%20job/coordinator"
    assert json.loads(text)["value"] == "10.0.0.1:29400"
    register.release()
    assert server.ctl("get", "--prefix", "/my/") == ""


def test_unused_etcd_leases_are_revoked(server: EtcdServer, registers: New) -> None:
    """Leases that are no longer in use don't accumulate."""

    def leases() -> set[str]:
        return set(server.ctl("lease", "list").splitlines()[1:])

    before = leases()  # those from other tests may end in the meantime
    register = registers(Place("etcd", server.endpoint, "leases"))
    for seconds in (LONG_S, LONG_S + 1, LONG_S, LONG_S):
        register.hold("a", seconds)
    assert len(leases() - before) == 1
    register.release()
    assert leases() <= before


def test_holder_with_revoked_lease_reacquires_the_lock(server: EtcdServer, registers: New) -> None:
    """The holder can only do so if nobody else has acquired the lock."""
    place = Place("etcd", server.endpoint, "revoked")
    first, second = registers(place), registers(place)
    before = first.hold("first", LONG_S)
    text = server.ctl("get", "-w", "json", "/torchelastic/p2p/revoked/coordinator")
    server.ctl("lease", "revoke", f"{json.loads(text)['kvs'][0]['lease']:x}")
    after = first.hold("first", LONG_S)
    assert after.ours
    assert after.revision != before.revision
    assert second.hold("second", LONG_S) == after._replace(ours=False)


def test_key_that_is_not_a_record_is_reported_and_kept(server: EtcdServer, registers: New) -> None:
    """If the key holds something other than a record, it is kept, and an error names it."""
    key = "/torchelastic/p2p/foreign/coordinator"
    register = registers(Place("etcd", server.endpoint, "foreign"))
    for text in ("hello", "{}", "[1]", '{"token": 1, "value": "x"}'):
        server.ctl("put", key, text)
        for value in ("", "mine"):
            with pytest.raises(OSError, match=f"the key {key} contains a value that is not"):
                register.hold(value, LONG_S)
    assert server.ctl("get", key).splitlines()[-1] == text
    server.ctl("del", key)
    assert register.hold("mine", LONG_S).ours
