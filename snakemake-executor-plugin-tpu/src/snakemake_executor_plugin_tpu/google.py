"""Google's packages, imported on first use: Snakemake imports every executor plugin at every start."""

import importlib
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError

from .worker.bucket import NO_CREDENTIALS, TIMEOUT, Answer, Refused, Transport

THREADS = 64


class Lazy:
    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        try:
            module = importlib.import_module(self._name)
        except ImportError as error:
            raise WorkflowError(
                f"The tpu executor needs Google's client libraries ({error}): run `pip install google-cloud-tpu "
                "google-cloud-storage google-auth`."
            ) from None
        return getattr(module, attribute)


def check_libraries() -> None:
    """Raise WorkflowError if Google's client libraries cannot be imported."""
    _ = gx.GoogleAPICallError


gx = Lazy("google.api_core.exceptions")
auth = Lazy("google.auth.exceptions")
requests = Lazy("requests")
adapters = Lazy("requests.adapters")
tpu_v2 = Lazy("google.cloud.tpu_v2")
storage = Lazy("google.cloud.storage")


def storage_transport() -> Transport:
    """Return the controller's way to Cloud Storage: the session of google-cloud-storage, with its credentials."""
    try:
        client = storage.Client(project=None)
    except auth.DefaultCredentialsError:
        raise WorkflowError(NO_CREDENTIALS) from None
    connection = client._connection
    for scheme in ("https://", "http://"):  # one connection for each thread
        client._http.mount(scheme, adapters.HTTPAdapter(pool_maxsize=THREADS))
    own = {"X-Goog-API-Client": connection.user_agent, "User-Agent": connection.user_agent}

    def send(method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answer:
        url = f"{connection.API_BASE_URL}{path}"
        try:
            answer = client._http.request(method, url, data=body, headers=own | headers, timeout=TIMEOUT)
            return answer.status_code, answer.headers, answer.content
        except auth.RefreshError as error:
            raise Refused(
                f"Google does not accept your credentials: run `gcloud auth application-default login` ({error})."
            ) from None
        except (auth.TransportError, requests.RequestException) as error:
            raise OSError(str(error)) from None

    return send
