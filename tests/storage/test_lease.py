"""The lease that keeps two jobs from writing one run."""

import json

import pytest

from tests.shell import python
from trm.errors import UserError
from trm.storage import Store
from trm.storage.lease import Lease, LeaseHeld, LeaseLost


def lease(store: Store) -> Lease:
    return Lease(store, "tiny", term=60)


@pytest.mark.parametrize("text", ["", "a minute", "0", "nan", "inf"])
def test_a_term_that_is_no_time_is_refused(monkeypatch, text):
    monkeypatch.setenv("TRM_LEASE_SECONDS", text)
    with pytest.raises(UserError, match=f"TRM_LEASE_SECONDS={text}: give a number above 0"):
        Lease(None, "tiny")


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


@pytest.mark.parametrize("both_found_none", [False, True])
def test_a_living_holder_keeps_it(store, clock, first, monkeypatch, both_found_none):
    clock.during, stat, found = first.renew, store.stat, [None] * both_found_none
    monkeypatch.setattr(store, "stat", lambda name: found.pop() if found else stat(name))
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


@pytest.mark.parametrize("learns", [True, False])
def test_a_silent_holder_loses_it_and_gives_nothing_away(store, clock, first, learns):
    if store.uri.startswith("gs") and not learns:
        pytest.skip("fake-gcs-server ignores a delete's precondition: test_faults looks at the request")
    second = lease(store)
    second.acquire()
    assert clock.now == 60
    if learns:
        with pytest.raises(LeaseLost, match="tiny was taken over by process"):
            first.renew()
        with pytest.raises(LeaseLost):
            first.check()
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
