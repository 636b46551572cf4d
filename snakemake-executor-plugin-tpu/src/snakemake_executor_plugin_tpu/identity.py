"""Names of jobs: the same on every machine and in every call, so that a running job is found again."""

import contextlib
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from snakemake.io import is_flagged
from snakemake_interface_common.exceptions import WorkflowError

CLOCK_SECONDS = 7.0  # a clock that is less than 5 s off is not corrected, and the server tells whole seconds


def members(job: Any) -> list[Any]:
    """Return the jobs of a group, or the job itself."""
    return list(job.jobs) if job.is_group() else [job]


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _where(file: Any) -> str:
    return file.storage_object.query if file.is_storage else str(file)


def slot_of(job: Any) -> str:
    """Name what a job makes: rule, wildcards and outputs. Two jobs with one slot must never run at the same time."""
    made = []
    for part in members(job):
        wildcards = sorted((key, str(value)) for key, value in part.wildcards.items())
        made.append([part.rule.name, wildcards, sorted(map(_where, part.output))])
    first = re.sub(r"[^A-Za-z0-9_]+", "-", members(job)[0].rule.name).strip("-_")[:40] or "job"
    return f"{first}-{_hash(sorted(made, key=str))[:12]}"


def fingerprint_of(job: Any) -> str:
    """Name how a job makes it: a job in the same slot with another fingerprint is outdated."""
    how = []
    for part in members(job):
        rest = [sorted(map(_where, part.input)), str(part.params), str(part.threads)]
        rest += [text] if (text := _script(part.rule)) else []
        how.append([part.rule.name, str(part.rule.shellcmd), *rest])
    return _hash(sorted(how, key=str))[:16]


def _script(rule: Any) -> str:
    """Return the text of a rule's `script:`, "" where there is none, or its name has wildcards."""
    if not rule.script:
        return ""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return Path(rule.basedir.join(rule.script).get_path_or_uri(secret_free=True)).read_text()
    return ""


def is_forced(job: Any, settings: Any) -> bool:
    """Whether the user forces a job. Snakemake's own reason says so of unfinished jobs as well."""
    parts = members(job)
    outputs = [file for part in parts for file in part.output]
    names = {*(part.rule.name for part in parts), *map(str, outputs), *map(_where, outputs)}
    chosen = {*settings.forcerun, *(settings.targets if settings.forcetargets else ())}
    return settings.forceall or bool(names & chosen)


def why_outdated(job: Any, forced: bool, launched: float, ended: bool) -> str:
    """Return why a launch of this job from an earlier call does not serve, "" if it does.

    `launched` is in seconds since the epoch. What a running launch makes is new; one that has ended well must have left
    its outputs, and is run again if the user forces it.
    """
    parts = members(job)
    outputs = [file for part in parts for file in part.output]
    made = set(map(_where, outputs))
    for file in (file for part in parts for file in part.input):
        if _where(file) not in made and not is_flagged(file, "ancient"):
            changed = file.storage_object.mtime() if file.is_storage else os.path.getmtime(file)
            if changed > launched + CLOCK_SECONDS:
                return f"{_where(file)} has changed since"
    if ended and forced:
        return "it is forced"
    lasting = [
        file for file in outputs if file.is_storage and not (job.is_group() and is_flagged(file, "temp"))
    ]
    gone = [_where(file) for file in lasting if not file.storage_object.exists()] if ended else []
    return f"its output {gone[0]} is gone" if gone else ""


def label_of(job: Any) -> str:
    """Name a job for people, on one line whatever its wildcards contain."""
    part = members(job)[0]
    words = [part.rule.name, *(f"{key}={value}" for key, value in part.wildcards.items())]
    return re.sub(r"[^\x20-\x7e]", "?", " ".join(map(str, words)))[:80]


def check_files(job: Any) -> None:
    """Refuse outputs that would stay on the pod."""
    if job.is_group():
        return
    local = [str(file) for file in job.output if not file.is_storage]
    if local:
        raise WorkflowError(
            f"Rule {job.rule.name} would write {local[0]} on the pod, where it would be lost: wrap it as "
            f'storage.gcs("gs://BUCKET/{local[0]}"), set default-storage-provider: gcs, or make the rule a localrule.'
        )
