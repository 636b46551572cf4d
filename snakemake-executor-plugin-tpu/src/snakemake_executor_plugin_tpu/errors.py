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
    """Return what the API's error means and which command fixes it."""
    text = str(getattr(error, "message", "") or error)
    project, zone, wanted = spec.project, spec.zone, spec.accelerator_type
    low, denied = words_of(error), isinstance(error, gx.PermissionDenied)
    login, you = "run `gcloud auth application-default login`", "--member=user:YOU@EXAMPLE.COM"

    def says(*words: str) -> bool:
        return any(word in low for word in words)

    def listed(what: str) -> str:
        return f"run `gcloud compute tpus {what} list --zone={zone} --project={project}` to see"

    if needs_login(error) and says("default credentials"):
        return NO_CREDENTIALS
    if needs_login(error):
        return f"Google Cloud does not accept your credentials: {login} ({text})."
    if says("has not been used in project", "service_disabled", "api has not been enabled"):
        command = f"gcloud services enable tpu.googleapis.com --project={project}"
        return f"The Cloud TPU API is off in project {project}: run `{command}`."
    if says("billing"):
        page = f"https://console.cloud.google.com/billing/linkedaccount?project={project}"
        return f"Project {project} has no active billing account: link one at {page} and wait some minutes ({text})."
    if says("serviceusage.services.use", "to use project", "quota project"):
        return (
            "Your credentials name a quota project that you may not use: run `gcloud auth application-default "
            f"set-quota-project {project}`, or have its owner grant roles/serviceusage.serviceUsageConsumer ({text})."
        )
    if says("vpc service controls", "vpcservicecontrols"):
        return (
            f"VPC Service Controls of your organization forbid this machine to {action}: run it inside the perimeter "
            f"of project {project}, or have its administrator add an access level ({text})."
        )
    if says("vmexternalipaccess"):
        return (
            "Your organization forbids external addresses (constraints/compute.vmExternalIpAccess): set "
            f"tpu-internal-ips: true and give the hosts Cloud NAT ({text})."
        )
    if denied and says("not found or access"):
        return (
            f"Project {project} has no access to TPUs in {zone}: v4 is in us-central2-b only, for projects with a "
            "grant (https://sites.research.google/trc) or a contract; `gcloud compute tpus locations list "
            f"--project={project}` shows the zones that the project may use ({text})."
        )
    if denied:
        what, role = f"{action} in project {project}", "tpu.admin"
        bind = f"projects add-iam-policy-binding {project}"
        if says("actas", "act as"):
            account = spec.service_account or "ACCOUNT"
            what, role = f"start hosts that act as {account}", "iam.serviceAccountUser"
            bind = f"iam service-accounts add-iam-policy-binding {account}"
        return f"Not allowed to {what}: run `gcloud {bind} {you} --role=roles/{role}` or ask its owner to ({text})."
    if says("quota"):
        command = f"gcloud beta quotas info list --service=tpu.googleapis.com --project={project}"
        kind = f"{spec.provisioning} {wanted}"
        return f"Project {project} has no quota for {kind} in {zone}: see `{command}`, ask for more ({text})."
    if says("capacity", "stockout") or isinstance(error, gx.ResourceExhausted):
        return f"Zone {zone} has no {wanted} now: run the same command later, or use another zone ({text})."
    if says("runtime version", "runtime_version"):
        image = spec.runtime()
        return f"Zone {zone} has no runtime version {image}: {listed('tpu-vm versions')} which it has."
    if says("accelerator"):
        return f"Zone {zone} has no {wanted}: {listed('accelerator-types')} what it has ({text})."
    if isinstance(error, (gx.InvalidArgument, gx.NotFound)) and says("location", "zone"):
        command = f"gcloud compute tpus locations list --project={project}"
        return f"Zone {zone} cannot be used by project {project}: run `{command}` to see which can ({text})."
    return f"The Cloud TPU API refused to {action} in project {project}, zone {zone}: {text or type(error).__name__}."
