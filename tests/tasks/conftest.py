"""The small pools and data sets of tests/data serve here too."""

from tests.data.conftest import mazes, pool_4x4, set_4x4

__all__ = ["mazes", "pool_4x4", "set_4x4"]
