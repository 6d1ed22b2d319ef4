"""What every leader lock guarantees, whatever its backend (`leader_lock.LeaderLock`)."""

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import LIMIT_S, clean_environment
from etcd_server import wait_for

from relight.rendezvous.leader_lock import NOBODY, LeaderLock, Record
from rendezvous import claims
from rendezvous.claims import Claim, Place, claim, overlaps, shorten

New = Callable[[], LeaderLock]
LONG_S = 60.0
SHORT_S = 1.0


class Holder:
    """A process that holds the lock for as long as it can."""

    def __init__(self, place: Place, who: str, ttl_s: float, output: Path) -> None:
        self.who, self.output = who, output
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, claims.__file__, *place, who, str(ttl_s)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=clean_environment(PYTHONPATH=str(Path(claims.__file__).parent.parent)),
            )

    def lines(self) -> list[list[str]]:
        ended = self.process.poll()
        assert ended in (None, -signal.SIGKILL), self.output.read_text()
        return [line.split(" ") for line in self.output.read_text().split("\n")[:-1]]

    def claims(self) -> list[Claim]:
        rows = [line for line in self.lines() if line[0] == "claim"]
        return [Claim(float(row[1]), float(row[2]), self.who, row[3]) for row in rows]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)


@pytest.fixture
def hold_in_process(place: Place, tmp_path: Path) -> Iterator[Callable[..., Holder]]:
    """Start a process that holds the lock; it is killed at the end."""
    holders: list[Holder] = []

    def begin(who: str, ttl_s: float) -> Holder:
        holders.append(Holder(place, who, ttl_s, tmp_path / f"holder.{len(holders)}"))
        return holders[-1]

    yield begin
    for holder in holders:
        holder.kill()


def hold(register: LeaderLock, value: str, ttl_s: float) -> Record:
    """Request the lock, and retry while it is unavailable, as its users do."""

    def ask() -> Record | None:
        try:
            return register.hold(value, ttl_s)
        except OSError:
            return None

    return wait_for(ask, "an answer")


def take(register: LeaderLock, value: str, ttl_s: float) -> None:
    """Request the lock until this process holds it."""
    wait_for(lambda: hold(register, value, ttl_s).ours, f"{value} to hold the register", LIMIT_S)


def test_reading_a_free_lock_does_not_acquire_it(new: New) -> None:
    """Requesting it with an empty value returns the holder; a free one stays free."""
    first, second = new(), new()
    assert first.hold("", LONG_S) == NOBODY
    taken = second.hold("b", LONG_S)
    assert (taken.value, taken.ours) == ("b", True)
    assert first.hold("", LONG_S) == taken._replace(ours=False)
    assert second.hold("", LONG_S) == taken


def test_reading_a_record_does_not_renew_it(new: New) -> None:
    """A holder that only reads its record loses the lock after the time to live."""
    register = new()
    assert register.hold("a", SHORT_S).ours
    other = new()

    def lapsed() -> bool:
        hold(register, "", SHORT_S)
        return hold(other, "", SHORT_S) == NOBODY

    wait_for(lapsed, "the end of the record", LIMIT_S)


def test_second_requester_is_given_the_current_holder(new: New) -> None:
    """The lock has one holder, and tells everybody else its value and revision."""
    first, second = new(), new()
    mine = first.hold("first", LONG_S)
    assert mine.ours
    assert second.hold("second", LONG_S) == mine._replace(ours=False)
    assert first.hold("first", LONG_S) == mine


def test_exactly_one_of_many_threads_acquires_the_lock(new: New) -> None:
    """Of many concurrent requests, one acquires the lock, and all of them learn which."""
    registers = [new() for _ in range(8)]
    barrier = threading.Barrier(len(registers))

    def ask(number: int) -> tuple[bool, str]:
        barrier.wait(LIMIT_S)
        ours, value = False, ""
        while not value:  # a busy lock may ask for a retry
            try:
                value, _, ours = registers[number].hold(str(number), LONG_S)
            except OSError:
                time.sleep(0.01)
        return ours, value

    for _ in range(5):
        with ThreadPoolExecutor(len(registers)) as pool:
            answers = list(pool.map(ask, range(len(registers))))
        winner = [number for number, (ours, _) in enumerate(answers) if ours]
        assert len(winner) == 1
        assert {value for _, value in answers} == {str(winner[0])}
        registers[winner[0]].release()


def test_exactly_one_of_many_processes_acquires_the_lock(
    hold_in_process: Callable[..., Holder],
) -> None:
    """One of several processes acquires the lock and keeps it."""
    holders = [hold_in_process(f"p{number}", LONG_S) for number in range(4)]
    for holder in holders:
        wait_for(lambda: len(holder.lines()) >= 2, f"{holder.who}'s answers")  # noqa: B023
    winners = [holder for holder in holders if holder.claims()]
    assert len(winners) == 1
    told = {line[1] for holder in holders for line in holder.lines() if line[0] == "other"}
    assert told == {winners[0].who}


@pytest.mark.slow
def test_renewed_lock_is_held_beyond_its_ttl(new: New) -> None:
    holder, other = new(), new()
    ttl_s = 1.5

    def is_kept() -> bool:
        """Renew for longer than the time to live; return False if the machine was too slow."""
        take(holder, "a", LONG_S)
        mine = hold(holder, "a", LONG_S)
        begin = asked = time.monotonic()
        while asked < begin + 2.5 * ttl_s:
            before, asked = asked, time.monotonic()
            found, seen = hold(holder, "a", ttl_s), hold(other, "b", ttl_s)
            if time.monotonic() >= before + ttl_s:
                other.release()
                return False
            assert found == mine
            assert seen == mine._replace(ours=False)
            time.sleep(0.1)
        return True

    wait_for(is_kept, "renewals in time")


@pytest.mark.parametrize("ttl_s", [0.7, 1.5])
def test_lock_expires_after_its_ttl_and_not_before(new: New, ttl_s: float) -> None:
    """A lock that is not renewed can be acquired, but never before its time to live has passed."""
    first, second = new(), new()
    first.hold("first", ttl_s)
    made = wait_for(lambda: claim(first, "first", ttl_s)[1], "an answer in time")
    take(second, "second", ttl_s)
    assert time.monotonic() >= made.end
    assert first.hold("first", ttl_s).value == "second"
    assert first.hold("", ttl_s).revision != made.revision


def test_lock_reads_as_free_after_record_has_expired(new: New) -> None:
    """Once a record's time to live has passed, every node sees a free lock."""
    first, second = new(), new()
    first.hold("first", 2 * SHORT_S)
    assert second.hold("", SHORT_S).value == "first"
    wait_for(lambda: second.hold("", SHORT_S) == NOBODY, "the end of the record", LIMIT_S)


def test_lock_stays_held_after_close(new: New) -> None:
    """Closing does not release the lock, because the holder's workers may still be running."""
    first, second = new(), new()
    first.hold("first", LONG_S)
    first.close()
    assert second.hold("second", LONG_S).value == "first"


def test_lock_is_free_after_release(new: New) -> None:
    """After a release, the lock is free immediately, and the next record is newer."""
    first, second = new(), new()
    before = first.hold("first", LONG_S)
    first.release()
    assert second.hold("", LONG_S) == NOBODY
    again = first.hold("first", LONG_S)
    assert again.ours
    assert again.revision != before.revision


def test_only_the_holder_can_release_the_lock(new: New) -> None:
    first, second = new(), new()
    mine = first.hold("first", LONG_S)
    second.release()
    second.hold("second", LONG_S)
    second.release()
    assert first.hold("", LONG_S) == mine


def test_evicted_holder_notices_eviction_on_its_next_request(new: New) -> None:
    """The record disappears immediately."""
    first, second = new(), new()
    dead = first.hold("first", LONG_S)
    second.evict(second.hold("", LONG_S))
    taken = second.hold("second", LONG_S)
    assert taken.ours
    assert taken.revision != dead.revision
    assert first.hold("first", LONG_S) == taken._replace(ours=False)


def test_evicted_holder_gets_new_revision_when_it_reacquires_lock(new: New) -> None:
    """The revision shows the holder that it was evicted in the meantime."""
    first, second = new(), new()
    before = first.hold("first", LONG_S)
    second.evict(before)
    after = first.hold("first", LONG_S)
    assert after.ours
    assert after.revision != before.revision


def test_eviction_never_removes_a_successor(new: New) -> None:
    """The successor may even be the same holder with the same value."""
    first, second = new(), new()
    second.evict(NOBODY)
    dead = first.hold("first", LONG_S)
    first.release()
    second.evict(dead)
    alive = first.hold("first", LONG_S)
    second.evict(dead)
    second.evict(NOBODY)
    assert first.hold("first", LONG_S) == alive
    assert second.hold("", LONG_S).value == "first"


@pytest.mark.slow
def test_renewing_holder_is_not_evicted(new: New) -> None:
    """An eviction does not remove a record that is renewed while the evicting node watches it."""
    first, second = new(), new()
    mine = first.hold("first", LONG_S)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            doubt = pool.submit(second.evict, mine, 2.0)  # the machine may be slow
            while not doubt.done():
                assert first.hold("first", LONG_S) == mine
                time.sleep(0.05)
            assert not doubt.result()
    assert second.hold("second", LONG_S) == mine._replace(ours=False)


def test_dead_holder_is_evicted(new: New) -> None:
    """Several nodes try to evict a dead holder; one succeeds, after waiting for the patience."""
    first, others = new(), [new(), new()]
    dead = first.hold("first", LONG_S)
    first.hold("first", LONG_S)
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        gone = list(pool.map(lambda register: register.evict(dead, 0.5), others))
    assert time.monotonic() >= began + 0.5
    assert any(gone)
    assert others[0].hold("second", LONG_S).ours
    others[1].evict(dead, 0.1)
    assert others[0].hold("second", LONG_S).ours


def test_holder_can_change_its_value_and_keep_the_lock(new: New) -> None:
    """A holder may change its value and time to live, and remains the holder."""
    first, second = new(), new()
    mine = first.hold("one", LONG_S)
    for value, ttl_s in (("two", LONG_S), ("two", LONG_S / 2), ("three", LONG_S)):
        assert first.hold(value, ttl_s) == mine._replace(value=value)
        assert second.hold("second", LONG_S) == mine._replace(value=value, ours=False)
    second.evict(mine)
    assert second.hold("", LONG_S) == NOBODY


def test_shorter_ttl_on_renewal_takes_effect(new: New) -> None:
    first, second = new(), new()
    first.hold("first", LONG_S)
    first.hold("first", SHORT_S)
    take(second, "second", SHORT_S)


@pytest.mark.parametrize(
    "value", ["10.0.0.1:29400", 'a"b\\c', "zwölf ☃ 🎈", " x ", "x" * 1000, "🎈" * 1000, "%41&=+;"]
)
def test_other_nodes_read_exactly_the_value_that_was_written(new: New, value: str) -> None:
    """Other nodes read a value of up to 1000 characters as it was written."""
    first, second = new(), new()
    first.hold(value, LONG_S)
    assert second.hold("", LONG_S).value == value
    assert first.hold(value, LONG_S).ours


def test_each_id_has_its_own_lock(place: Place, registers: Callable[[Place], LeaderLock]) -> None:
    """Ids may contain any characters."""
    ids = ["a b", "a%20b", "a+b", "a_b", "..", ".", "ä", "a\udcff", "%", "a?b", "a#b", "a;b", "☃",
           "a\nb", "x" * 300, "x" * 301, "lock", "A", "a"]  # fmt: skip
    seen = {}
    for job in ids:
        mine = registers(place._replace(job=f"{job}{place.job if len(job) > 2 else ''}"))
        other = registers(place._replace(job=f"{job}{place.job if len(job) > 2 else ''}"))
        assert mine.hold(f"of {job!r}", LONG_S).ours, job
        assert other.hold("other", LONG_S).value == f"of {job!r}"
        seen[job] = mine
    for job, register in seen.items():
        assert register.hold("", LONG_S).value == f"of {job!r}"
        register.release()


def test_killed_holder_is_replaced_after_ttl(
    new: New, hold_in_process: Callable[..., Holder]
) -> None:
    """The killed holder leaves nothing behind that gets in the way."""
    holder = hold_in_process("dead", SHORT_S)
    wait_for(lambda: len(holder.claims()) >= 3, "some renewals")
    holder.kill()
    register = new()
    take(register, "alive", SHORT_S)
    assert time.monotonic() >= holder.claims()[-1].end
    assert register.hold("alive", SHORT_S).ours


@pytest.mark.slow
def test_lock_never_has_two_concurrent_holders(
    place: Place, hold_in_process: Callable[..., Holder]
) -> None:
    """However holders are killed and replaced, two never act concurrently, and one soon acts."""
    rng = random.Random(5)
    holders = [hold_in_process(f"p{number}", SHORT_S) for number in range(3)]
    dead: dict[str, float] = {}
    for round_ in range(5):
        living = [holder for holder in holders if holder.who not in dead]
        began = time.monotonic()
        holder = wait_for(
            lambda: [h for h in living if h.claims() and h.claims()[-1].start > began],  # noqa: B023
            "a holder",
        )[0]
        time.sleep(rng.random() * 0.3)
        holder.kill()
        dead[holder.who] = time.monotonic()
        holders.append(hold_in_process(f"q{round_}", SHORT_S))
    made = [each for holder in holders for each in holder.claims()]
    assert len({each.who for each in made}) >= 5
    for who, end in dead.items():
        made = shorten(made, who, end)
    assert overlaps(made) == []


def test_overlap_check_detects_two_holders() -> None:
    """Claims by one holder, or by two holders in succession, are fine."""
    one, again = Claim(0, 2, "a", "1"), Claim(1, 3, "a", "1")
    assert overlaps([one, again, Claim(3, 4, "b", "2")]) == []
    late = Claim(2.5, 4, "b", "2")
    assert overlaps([again, late, one]) == [(again, late)]
    assert overlaps(shorten([one, again, late], "a", 2.2)) == []
