#!/usr/bin/env python3
"""A stand-in for gcloud: takes the command forms of docs/cloud.md and refuses all others, and what names nothing.

State is one JSON file (GCLOUD_STATE): project, accounts, and who holds which role where.
"""

import json
import os
import re
import sys
from pathlib import Path

from snakemake_executor_plugin_tpu.emulator.iam import ROLES, TPU_PERMISSIONS

MEMBER = r"--member=(?P<member>(?:user|serviceAccount):[^@\s]+@\S+) --role=(?P<role>\S+)"
FORMS = {
    "project": r"config set project (?P<name>[a-z][a-z0-9-]{4,28}[a-z0-9])",
    "services": r"services enable(?P<services>( [a-z]+\.googleapis\.com)+)",
    "active": r"auth login",
    "login": r"auth application-default login",
    "bucket": r"storage buckets create gs://(?P<name>[a-z0-9._-]{3,63}) --location=(?P<place>[a-z]+-[a-z]+\d)"
    r" --uniform-bucket-level-access --public-access-prevention --soft-delete-duration=0",
    "account": r"iam service-accounts create (?P<name>[a-z][a-z0-9-]{4,28}[a-z0-9]) --project=(?P<project>\S+)",
    "custom": r"iam roles create (?P<name>[A-Za-z0-9_.]{3,64}) --project=(?P<project>\S+)"
    r" --permissions=(?P<permissions>[A-Za-z.,]+)",
    "bucket_role": rf"storage buckets add-iam-policy-binding gs://(?P<name>\S+) {MEMBER}",
    "project_role": rf"projects add-iam-policy-binding (?P<name>\S+) {MEMBER}",
    "account_role": rf"iam service-accounts add-iam-policy-binding (?P<name>\S+) {MEMBER}",
    "quota": r"beta quotas info list --service=tpu\.googleapis\.com --project=(?P<project>\S+)",
    "remove": r"storage rm -r gs://(?P<name>[^/\s]+)/(?P<prefix>\S+)",
    "requests": r"compute tpus queued-resources list --zone=(?P<zone>[a-z]+-[a-z]+\d-[a-z]) --project=(?P<project>\S+)",
}


def main() -> int:
    """Do one command."""
    line, path = " ".join(sys.argv[1:]), Path(os.environ["GCLOUD_STATE"])
    state = json.loads(path.read_text()) if path.exists() else {"accounts": [], "buckets": [], "roles": []}
    command, found = next(
        ((name, match) for name, form in FORMS.items() if (match := re.fullmatch(form, line))), (None, None)
    )
    if found is None:
        print(f"ERROR: (gcloud) unrecognized arguments: {line}", file=sys.stderr)
        return 2
    values = found.groupdict()
    project = state.get("project")
    if command == "active":
        state["active"] = True
    elif command not in ("project", "login") and not state.get("active"):
        return refuse("You do not currently have an active account selected.")
    elif command == "project":
        state["project"] = values["name"]
    elif command != "login" and (project is None or values.get("project", project) != project):
        return refuse("the project is not set, or another one is named")
    if command == "services":
        state["services"] = values["services"].split()
    if command == "quota" and "cloudquotas.googleapis.com" not in state.get("services", ()):
        return refuse("Cloud Quotas API has not been used in project or it is disabled.")
    if command == "bucket":
        state["buckets"].append(values["name"])
    if command == "account":
        state["accounts"].append(f"{values['name']}@{values['project']}.iam.gserviceaccount.com")
    if command == "custom":
        name = f"projects/{values['project']}/roles/{values['name']}"
        if unknown := set(values["permissions"].split(",")) - TPU_PERMISSIONS:
            return refuse(f"INVALID_ARGUMENT: Permission {min(unknown)} is not valid.")
        state.setdefault("custom", {})[name] = values["permissions"].split(",")
    if command in ("bucket_role", "project_role", "account_role"):
        there = {"bucket_role": state["buckets"], "account_role": state["accounts"]}
        kind, _, who = values["member"].partition(":")
        if values["name"] not in there.get(command, [state["project"]]):
            return refuse(f"{values['name']} does not exist")
        if kind == "serviceAccount" and who not in state["accounts"]:
            return refuse(f"Service account {who} does not exist.")
        if values["role"] not in {**ROLES, **state.get("custom", {})}:
            return refuse(f"Role {values['role']} is not supported for this resource.")
        state["roles"].append([command, values["member"], values["role"]])
    if command == "remove" and values["name"] not in state["buckets"]:
        return refuse(f"The following URLs matched no objects: gs://{values['name']}")
    state.setdefault("calls", []).append(command)
    path.write_text(json.dumps(state))
    return 0


def refuse(reason: str) -> int:
    """Say why not."""
    print(f"ERROR: (gcloud) {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
