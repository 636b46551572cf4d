from tests.storage.conftest import broken  # noqa: F401 (a fixture)
