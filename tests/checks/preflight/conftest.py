from tests.storage.conftest import gs, proxy, server  # noqa: F401 (fixtures)
