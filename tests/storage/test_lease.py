"""The lease that keeps two jobs from writing one run."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.shell import python
from trm.errors import UserError
from trm.storage import Store
from trm.storage.lease import Lease, LeaseHeld, LeaseLost

from .conftest import race


def lease(store: Store) -> Lease:
    return Lease(store, "tiny", term=60)


def test_a_term_that_is_no_time_is_refused(store, monkeypatch):
    for text in ("", "a minute", "0", "nan", "inf"):
        monkeypatch.setenv("TRM_LEASE_SECONDS", text)
        with pytest.raises(UserError, match=f"TRM_LEASE_SECONDS={text}: give a number above 0"):
            Lease(store, "tiny")


@pytest.fixture
def first(store) -> Lease:
    """A lease that is held."""
    held = lease(store)
    held.acquire()
    return held


def test_a_free_lease_is_taken_and_given_back(store, first):
    assert store.stat("lease.json")
    first.renew()
    first.release()
    with pytest.raises(RuntimeError, match="never acquired"):
        first.renew()
    assert store.stat("lease.json") is None
    lease(store).acquire()


def test_a_living_holder_keeps_it(store, clock, first):
    clock.during = first.renew
    with pytest.raises(LeaseHeld, match=r"tiny is being written by process \d+ on .*: stop it"):
        lease(store).acquire()
    assert clock.now < 60


def test_where_it_pays_a_living_holder_is_waited_for(store, clock, first, capsys):
    looks = []

    def live():
        looks.append(0)
        (first.renew if len(looks) < 4 else first.release)()

    clock.during = live
    lease(store).acquire(wait=True)
    assert len(looks) == 4
    assert capsys.readouterr().err.count("trains this run; waiting for it to end") == 1


def test_one_of_another_machine_is_not_waited_for(store, clock, first, monkeypatch):
    clock.during = first.renew
    monkeypatch.setattr("trm.storage.lease._machine", lambda: "another")
    with pytest.raises(LeaseHeld):
        lease(store).acquire(wait=True)


def test_a_silent_holder_loses_it_and_learns_so(store, clock, first):
    second = lease(store)
    second.acquire()
    assert clock.now == 60
    with pytest.raises(LeaseLost, match="tiny was taken over by process"):
        first.renew()
    with pytest.raises(LeaseLost):
        first.check()
    first.release()
    second.renew()  # the loser gave nothing away


def test_a_holder_that_does_not_know_of_its_loss_gives_nothing_away(store, clock, first):
    if store.uri.startswith("gs"):
        pytest.skip("fake-gcs-server ignores a delete's precondition: test_faults looks at the request")
    second = lease(store)
    second.acquire()
    first.release()
    second.renew()


def test_a_dead_process_of_this_machine_is_not_waited_for(store, clock):
    script = "import sys; from trm.storage import open_store; from trm.storage.lease import Lease;"
    script += "Lease(open_store(sys.argv[1]), 'tiny').acquire()"
    python("-m", "tests.script", script, store.uri, check=True)
    lease(store).acquire()
    assert clock.now == 0


def test_an_unreadable_lease_is_waited_out(store, clock):
    store.put_bytes("lease.json", b"not json")
    lease(store).acquire()
    assert clock.now == 60
    assert json.loads(store.get_bytes("lease.json"))["run"] == "tiny"


def test_background_renewal_finds_the_loss(store):
    first = Lease(store, "tiny", term=0.03)
    with first:
        thread = first._thread
        store.put_bytes("lease.json", b"{}")  # another job took it
        thread.join(timeout=180)
        assert not thread.is_alive()
        with pytest.raises(LeaseLost):
            first.check()


RACER = """
import sys
from trm.storage import open_store
from trm.storage.lease import Lease, LeaseHeld
lease = Lease(open_store(sys.argv[1]), "tiny", term=60)
print("ready", flush=True)
sys.stdin.readline()
try:
    lease.acquire()
    lease.term = 0.6  # renew it often, for the other one to see
    lease.keep()
    print("won", flush=True)
    sys.stdin.readline()
    lease.release()
except LeaseHeld:
    print("lost", flush=True)
"""


def test_of_two_processes_that_start_at_once_one_gets_it(store):
    jobs = race(RACER, store.uri, store.uri)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda job: job.stdout.readline(), jobs))
    for job in jobs:
        job.communicate("end\n", timeout=180)
    assert sorted(answers) == ["lost\n", "won\n"]
