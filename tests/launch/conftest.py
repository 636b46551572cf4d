"""Fixtures of other rooms that these tests use."""

from tests.pipeline.conftest import built, project  # noqa: F401 (fixtures)
from tests.training.conftest import dataset_folder  # noqa: F401 (a fixture)
