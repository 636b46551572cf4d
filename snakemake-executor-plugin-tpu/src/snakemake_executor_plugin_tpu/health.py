"""Hosts that are new and unchecked, on which jobs of different names fail early, or that are slow."""

import time
from collections.abc import Callable, Collection
from statistics import median

EARLY_SECONDS = 120.0
LONG_SECONDS = 3600.0
SUSPECTS = 2  # jobs that failed early on a host and on no other
SLOWER = 3.0  # times slower than jobs like it on other hosts: a straggler
LIKE_IT = 2  # jobs on other hosts that it takes to say so
Place = tuple[str, int]
"""Slice and host."""


class Health:
    """What the jobs' ends say about the hosts of all slices."""

    def __init__(self, say: Callable[[str], None]):
        self.say = say
        self.aside: dict[Place, tuple[str, float]] = {}
        """Hosts that get no jobs, why, and since when."""
        self.unchecked: set[Place] = set()
        """Hosts of a new slice that get no jobs before they have been checked."""
        self._speeds: dict[str, dict[str, tuple[Place, float]]] = {}
        self._failed: dict[Place, set[str]] = {}

    def usable(self, job: str, places: Collection[Place]) -> set[Place]:
        """Return the hosts for a job: none that was set aside, and none where it has failed unless no other is left."""
        good = {place for place in places if place not in self.aside} or set(places)
        return {place for place in good if job not in self._failed.get(place, ())} or good

    def note(self, job: str, place: Place, failed: bool, hosts: int) -> bool:
        """Note how a job ended on one of so many hosts; return whether that host is now under suspicion."""
        if not failed:
            self._failed.pop(place, None)
            return False
        self._failed.setdefault(place, set()).add(job)
        elsewhere = [jobs for other, jobs in self._failed.items() if other != place]
        only_here = self._failed[place].difference(*elsewhere)
        return len(only_here) >= SUSPECTS and self.can_spare(place, hosts)

    def can_spare(self, place: Place, hosts: int) -> bool:
        """Return whether a host can be set aside: if half of them are, jobs or checks are to blame."""
        return place not in self.aside and 2 * len(self.aside) + 2 <= hosts

    def note_speed(self, like: str, job: str, place: Place, speed: float, hosts: int) -> str:
        """Note the progress of a job per second; return in words that it is a straggler whose host has to go.

        `like` names the jobs that should be equally fast. They count after their end as well.
        """
        speeds = self._speeds.setdefault(like, {})
        speeds[job] = place, speed
        others = [each for where, each in speeds.values() if where != place]
        if len(others) < LIKE_IT or speed <= 0 or not self.can_spare(place, hosts):
            return ""
        slower = median(others) / speed
        sentence = f"{slower:.0f} times slower than {len(others)} jobs like it on other hosts"
        return sentence if slower >= SLOWER else ""

    def set_aside(self, place: Place, why: str) -> None:
        self.unchecked.discard(place)
        if place not in self.aside:
            self.say(f"w{place[1]} of {place[0]} is set aside: {why}. Jobs and retries go to the other hosts")
            self.aside[place] = why, time.monotonic()

    def restore(self, place: Place) -> None:
        self.unchecked.discard(place)
        if self.aside.pop(place, None):  # the jobs that failed there still go elsewhere
            self.say(f"w{place[1]} of {place[0]} passed its check and serves again")

    def forget(self, slice: str) -> None:
        """Forget the hosts of a slice that was created again."""
        for known in (self.aside, self._failed):
            for place in [place for place in known if place[0] == slice]:
                known.pop(place)
        self.unchecked = {place for place in self.unchecked if place[0] != slice}

    def long_aside(self, slice: str) -> str:
        """Return in words which host of a slice has been set aside for too long; empty if none has."""
        long_ago = time.monotonic() - LONG_SECONDS
        hosts = [
            host for (name, host), (_, since) in self.aside.items() if name == slice and since < long_ago
        ]
        return f"w{hosts[0]} has been set aside for {LONG_SECONDS / 60:.0f} minutes" if hosts else ""

    def words(self, slice: str = "") -> str:
        """Return what is set aside, on all slices or on one; empty if nothing is."""
        return "; ".join(
            f"w{host} of {name} is set aside ({why}); the next call gives it jobs again"
            for (name, host), (why, _) in sorted(self.aside.items())
            if slice in ("", name)
        )
