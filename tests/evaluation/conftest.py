"""The tiny data set and the single thread of the training tests."""

from tests.training.conftest import dataset_folder, one_thread  # noqa: F401 (fixtures)
