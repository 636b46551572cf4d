"""Long work says how far it is; short work says nothing."""

import pytest

from trm.data.progress import Progress, over_rows


def test_long_work_prints_share_and_time_left_and_short_work_nothing(capsys):
    for options in ({"every": 0.0}, {}):
        progress = Progress("digging", 200, "holes", **options)
        progress.update(50)
        progress.close(200)
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("digging: 25 % 50 holes, ")
    assert first.endswith(" s left")
    assert last.startswith("digging: 200 holes in ")


def test_every_row_once_and_errors_come_through():
    seen = []
    over_rows(lambda start, stop: seen.extend(range(start, stop)), 103, 10)
    assert sorted(seen) == list(range(103))
    over_rows(lambda start, stop: seen.clear(), 0, 10)
    assert len(seen) == 103

    def fail(start, stop):
        if start:
            raise KeyError(start)

    with pytest.raises(KeyError):
        over_rows(fail, 100, 10)
