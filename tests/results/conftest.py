"""Fixtures of other rooms that these tests use."""

from tests.storage.conftest import gcs, gs, server  # noqa: F401 (fixtures)
