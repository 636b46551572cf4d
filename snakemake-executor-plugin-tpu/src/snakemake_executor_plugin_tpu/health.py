"""Hosts on which jobs of different names fail early: they are set aside, and retries go elsewhere."""

import time
from collections.abc import Callable, Collection

EARLY_SECONDS = 120.0
LONG_SECONDS = 3600.0
SUSPECTS = 2  # jobs that failed early on a host and on no other
Place = tuple[str, int]
"""Slice and host."""


class Health:
    """What the jobs' ends say about the hosts of all slices."""

    def __init__(self, say: Callable[[str], None]):
        self.say = say
        self.aside: dict[Place, str] = {}
        """Hosts that get no jobs, and why."""
        self._since: dict[Place, float] = {}
        self._failed: dict[Place, set[str]] = {}

    def usable(self, job: str, places: Collection[Place]) -> set[Place]:
        """Return the hosts for a job: none that was set aside, and none where it has failed unless no other is left."""
        good = {place for place in places if place not in self.aside} or set(places)
        return {place for place in good if job not in self._failed.get(place, ())} or good

    def note(self, job: str, place: Place, failed: bool, hosts: int) -> bool:
        """Note how a job ended on one of so many hosts; return whether that host is now under suspicion.

        If most hosts were, the jobs would be to blame.
        """
        if not failed:
            self._failed.pop(place, None)
            return False
        self._failed.setdefault(place, set()).add(job)
        elsewhere = [jobs for other, jobs in self._failed.items() if other != place]
        only_here = self._failed[place].difference(*elsewhere)
        return place not in self.aside and len(only_here) >= SUSPECTS and 2 * len(self.aside) + 2 <= hosts

    def set_aside(self, place: Place, why: str) -> None:
        if place not in self.aside:
            self.say(f"w{place[1]} of {place[0]} is set aside: {why}. Jobs and retries go to the other hosts")
        self.aside[place] = why
        self._since.setdefault(place, time.monotonic())

    def restore(self, place: Place) -> None:
        self._since.pop(place, None)
        if self.aside.pop(place, None):  # the jobs that failed there still go elsewhere
            self.say(f"w{place[1]} of {place[0]} passed its check and serves again")

    def forget(self, slice: str) -> None:
        """Forget the hosts of a slice that was created again."""
        for known in (self.aside, self._failed, self._since):
            for place in [place for place in known if place[0] == slice]:
                known.pop(place)

    def long_aside(self, slice: str) -> str:
        """Return in words which host of a slice has been set aside for too long; empty if none has."""
        now = time.monotonic()
        hosts = [
            host
            for (name, host), since in self._since.items()
            if name == slice and now - since > LONG_SECONDS
        ]
        return f"w{hosts[0]} has been set aside for {LONG_SECONDS / 60:.0f} minutes" if hosts else ""

    def words(self, slice: str = "") -> str:
        """Return what is set aside, on all slices or on one; empty if nothing is."""
        return "; ".join(
            f"w{host} of {name} is set aside ({why}); the next call gives it jobs again"
            for (name, host), why in sorted(self.aside.items())
            if slice in ("", name)
        )
