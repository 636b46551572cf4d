"""Errors of pods, explained in one sentence with the command that fixes them."""

import os
import re
import sys
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError

from .google import auth, gx
from .worker.bucket import NO_CREDENTIALS

COMMAND = "python -m snakemake_executor_plugin_tpu"
DOWN = f"`{COMMAND} down`"


class PodError(WorkflowError):
    """The pod cannot be used, and a retry would not help."""


class CloudError(PodError):
    """The cloud refuses a request."""


class Offline(CloudError):
    """The cloud cannot be reached, or does not answer."""


class DeletedByUser(CloudError):
    """Somebody deleted the pod on purpose."""


def needs_login(error: Exception) -> bool:
    """Whether the credentials are missing or have expired. gRPC reports this as an outage."""
    if isinstance(error, auth.TransportError):
        return False
    low, words = str(error).lower(), ("refresh", "reauth", "invalid_grant", "credential")
    plugin = "getting metadata from plugin failed" in low and any(word in low for word in words)
    return plugin or isinstance(error, (auth.GoogleAuthError, gx.Unauthenticated))


def is_transient(error: Exception) -> bool:
    """Whether an API call may succeed if repeated: so may what this client does not know."""
    if isinstance(
        error, gx.TooManyRequests
    ):  # a limit of requests per minute passes; quota for chips does not
        return "per minute" in str(error).lower()
    return isinstance(error, auth.TransportError) or not (needs_login(error) or is_refused(error))


def words_of(error: Exception) -> str:
    """Return an error in small letters without the names of resources: they contain `locations` and a project's id."""
    return re.sub(r"\S*projects/\S*", "", str(error).lower())


def is_quota(error: Exception) -> bool:
    """Whether the project's limit is reached: for a moment also while an old queued resource is being removed."""
    return "quota" in (low := words_of(error)) and "capacity" not in low


def is_refused(error: Exception) -> bool:
    """Whether another request for the same pod cannot succeed: the request, the permissions or the quota is wrong."""
    passing = (gx.Conflict, gx.TooManyRequests, gx.Cancelled)  # a slow server may say so as `cancelled`
    client = isinstance(error, (gx.ClientError, auth.GoogleAuthError)) and not isinstance(error, passing)
    return client or is_quota(error)


def is_new_account(error: Exception) -> bool:
    """Whether the hosts' service account may be too new to be known everywhere."""
    return isinstance(error, gx.PermissionDenied) and "act as" in str(error)


def red(text: str) -> str:
    return f"\033[31m{text}\033[0m" if sys.stderr.isatty() and "NO_COLOR" not in os.environ else text


def short(error: Exception) -> str:
    text = str(getattr(error, "message", "") or error).strip() or type(error).__name__
    return text.splitlines()[0][:200]


def explain(error: Exception, action: str, spec: Any) -> str:
    """Return what the API's error means and which command fixes it; where Google's own words say it, these."""
    text = str(getattr(error, "message", "") or error)
    project, zone, wanted = spec.project, spec.zone, spec.accelerator_type
    low, denied = words_of(error), isinstance(error, gx.PermissionDenied)

    def says(*words: str) -> bool:
        return any(word in low for word in words)

    def allow(what: str, bind: str, role: str) -> str:
        command = f"gcloud {bind} --member=user:YOU@EXAMPLE.COM --role=roles/{role}"
        return f"Not allowed to {what}: run `{command}` or ask its owner to ({text})."

    if needs_login(error) and says("default credentials"):
        return NO_CREDENTIALS
    if needs_login(error):
        login = "run `gcloud auth application-default login`"
        return f"Google Cloud does not accept your credentials: {login} ({text})."
    if says("vmexternalipaccess"):
        return (
            "Your organization forbids external addresses (constraints/compute.vmExternalIpAccess): set "
            f"tpu-internal-ips: true and give the hosts Cloud NAT ({text})."
        )
    if says("location") and isinstance(error, (gx.PermissionDenied, gx.InvalidArgument, gx.NotFound)):
        command = f"gcloud compute tpus locations list --project={project}"
        return f"Project {project} has no access to TPUs in {zone}: run `{command}` to see where it has ({text})."
    if denied and says("actas", "act as"):
        account = spec.service_account or "ACCOUNT"
        bind = f"iam service-accounts add-iam-policy-binding {account}"
        return allow(f"start hosts that act as {account}", bind, "iam.serviceAccountUser")
    if denied and says("permission 'tpu."):
        bind = f"projects add-iam-policy-binding {project}"
        return allow(f"{action} in project {project}", bind, "tpu.admin")
    if is_quota(error) and not denied:
        command = f"gcloud beta quotas info list --service=tpu.googleapis.com --project={project}"
        kind = f"{spec.provisioning} {wanted}"
        return f"Project {project} has no quota for {kind} in {zone}: see `{command}`, ask for more ({text})."
    if says("capacity", "stockout") or isinstance(error, gx.ResourceExhausted):
        return f"Zone {zone} has no {wanted} now: run the same command later, or use another zone ({text})."
    return f"The Cloud TPU API refused to {action} in project {project}, zone {zone}: {text or type(error).__name__}."
