"""Errors of pods, explained in one sentence with the command that fixes them."""

import os
import sys
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError

from .google import auth, gx


class PodError(WorkflowError):
    """The pod cannot be used, and a retry would not help."""


class CloudError(PodError):
    """The cloud refuses a request."""


class Offline(CloudError):
    """The cloud cannot be reached, or does not answer."""


class DeletedByUser(CloudError):
    """Somebody deleted the pod on purpose."""


class HostKeyError(PodError):
    """A host shows the wrong host key."""


class Unreachable(Exception):
    """A host does not answer at the moment."""


class HostsSilentError(PodError):
    """A host of a pod that should be ready has not answered for too long."""


class LoginRefused(Unreachable):
    """A host answers and refuses this user or key."""


class TaskLost(Exception):
    """A task on a host is gone, and its job is not to blame."""


class TaskSilent(TaskLost):
    """The host of a task has not answered for some time: the task may still run."""


def needs_login(error: Exception) -> bool:
    """Whether the credentials are missing or have expired. gRPC reports this as an outage."""
    if isinstance(error, auth.TransportError):
        return False
    low = str(error).lower()
    plugin = "getting metadata from plugin failed" in low
    return isinstance(error, (auth.GoogleAuthError, gx.Unauthenticated)) or (
        plugin and any(word in low for word in ("refresh", "reauth", "invalid_grant", "credential"))
    )


def is_transient(error: Exception) -> bool:
    """Whether an API call may succeed if repeated."""
    if needs_login(error):
        return False
    if isinstance(error, (gx.TooManyRequests, gx.ResourceExhausted)):
        # A limit of requests per minute passes; quota for chips does not.
        return "per minute" in str(error).lower()
    server = (gx.ServiceUnavailable, gx.InternalServerError, gx.BadGateway, gx.GatewayTimeout)
    call = (gx.DeadlineExceeded, gx.Aborted, gx.Unknown, auth.TransportError)
    return isinstance(error, (*server, *call))


def is_quota(error: Exception) -> bool:
    """Whether the project's limit is reached: for a moment also while an old queued resource is being removed."""
    low = str(error).lower()
    return "quota" in low and "capacity" not in low


def is_refused(error: Exception) -> bool:
    """Whether another request for the same pod cannot succeed: the request, the permissions or the quota is wrong."""
    request = (gx.InvalidArgument, gx.FailedPrecondition, gx.NotFound)
    permission = (gx.PermissionDenied, gx.Unauthenticated, auth.GoogleAuthError)
    return isinstance(error, (*request, *permission)) or is_quota(error)


def red(text: str) -> str:
    return f"\033[31m{text}\033[0m" if sys.stderr.isatty() and "NO_COLOR" not in os.environ else text


def short(error: Exception) -> str:
    text = str(getattr(error, "message", "") or error).strip() or type(error).__name__
    return text.splitlines()[0][:200]


def explain(error: Exception, project: str, zone: str, action: str, spec: Any = None) -> str:
    """Return what the API's error means and which command fixes it."""
    text = str(getattr(error, "message", "") or error)
    low = text.lower()
    wanted = getattr(spec, "accelerator_type", "TPU")
    if needs_login(error) and "default credentials" in low:
        return (
            "This machine has no Google credentials: run `gcloud auth application-default login`, or set "
            "GOOGLE_APPLICATION_CREDENTIALS to a key file."
        )
    if needs_login(error):
        return f"Google Cloud does not accept your credentials: run `gcloud auth application-default login` ({text})."
    disabled = ("has not been used in project", "service_disabled", "api has not been enabled")
    if any(words in low for words in disabled):
        return (
            f"The Cloud TPU API is off in project {project}: run "
            f"`gcloud services enable tpu.googleapis.com --project={project}`."
        )
    if "billing" in low:
        return (
            f"Project {project} has no active billing account: link one at "
            f"https://console.cloud.google.com/billing/linkedaccount?project={project} and wait some minutes ({text})."
        )
    if "serviceusage.services.use" in low or "to use project" in low or "quota project" in low:
        return (
            "Your credentials name a quota project that you may not use: run `gcloud auth application-default "
            f"set-quota-project {project}`, or have its owner grant roles/serviceusage.serviceUsageConsumer ({text})."
        )
    if isinstance(error, gx.PermissionDenied) and "location" in low:
        return (
            f"Project {project} has no access to TPUs in {zone}: v4 is in us-central2-b only, for projects with a "
            "grant (https://sites.research.google/trc) or a contract; `gcloud compute tpus locations list "
            f"--project={project}` shows the zones that the project may use ({text})."
        )
    if isinstance(error, gx.PermissionDenied) and "actas" in low:
        account = getattr(spec, "service_account", None) or "ACCOUNT"
        return (
            f"Not allowed to start hosts that act as {account}: run `gcloud iam service-accounts "
            f"add-iam-policy-binding {account} --member=user:YOU@EXAMPLE.COM --role=roles/iam.serviceAccountUser` "
            f"or ask its owner to ({text})."
        )
    if isinstance(error, gx.PermissionDenied):
        return (
            f"Not allowed to {action} in project {project}: run `gcloud projects add-iam-policy-binding {project} "
            f"--member=user:YOU@EXAMPLE.COM --role=roles/tpu.admin` or ask its owner to ({text})."
        )
    if "quota" in low:
        return (
            f"Project {project} has no quota for {getattr(spec, 'provisioning', '')} {wanted} in {zone}: see "
            f"`gcloud beta quotas info list --service=tpu.googleapis.com --project={project}` and ask for more "
            f"({text})."
        )
    if "capacity" in low or "stockout" in low or isinstance(error, gx.ResourceExhausted):
        return (
            f"Zone {zone} has no free {wanted} now: run the same command later, or use another zone ({text})."
        )
    if "runtime version" in low or "runtime_version" in low:
        return (
            f"Zone {zone} has no runtime version {getattr(spec, 'runtime_version', '')}: run "
            f"`gcloud compute tpus tpu-vm versions list --zone={zone} --project={project}` to see which it has."
        )
    if isinstance(error, (gx.InvalidArgument, gx.NotFound)) and ("location" in low or "zone" in low):
        return (
            f"Zone {zone} cannot be used by project {project}: run `gcloud compute tpus locations list "
            f"--project={project}` to see which can ({text})."
        )
    if "accelerator" in low:
        return (
            f"Zone {zone} has no {wanted}: run `gcloud compute tpus accelerator-types list --zone={zone} "
            f"--project={project}` to see what it has ({text})."
        )
    return f"The Cloud TPU API refused to {action} in project {project}, zone {zone}: {text or type(error).__name__}."
