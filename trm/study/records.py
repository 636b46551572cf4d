"""Identity of result files: every reader compares it with the file's name and the other files.

Runs, tables, fits and figures are named by content, `<words>-<hash8>`. A file that was copied over another one, or that
changed on the disk, would otherwise be measured and drawn as something that it is not. Needs neither numpy nor torch.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trm.errors import UserError
from trm.io import dump, read_json, sha256_file
from trm.study.fingerprint import digest, evaluation_fingerprint
from trm.study.schema import EvaluationConfig

NAMED = re.compile(r".+-[0-9a-f]{8}")
"""Names by content; others are chosen by people and not compared."""
WEIGHTS, HISTORY, TRAINING = "weights.safetensors", "history.csv", "training.json"
CHANGED = "was changed, damaged or replaced since it was written"
CHECKSUM = "checksum"
"""Key of a JSON file for the SHA-256 of all its other entries."""
AGAIN = "delete it and repeat the command, which makes it again"


def sealed(document: dict[str, Any]) -> dict[str, Any]:
    """The document with its `CHECKSUM`."""
    entries = {key: value for key, value in document.items() if key != CHECKSUM}
    return {**entries, CHECKSUM: digest(json.loads(dump(entries, compact=True)))}


def check_seal(path: Path, document: dict[str, Any], remedy: str = AGAIN) -> None:
    """Compare a JSON file's entries with their checksum (none: by an earlier version). UserError: they differ."""
    if CHECKSUM in document and sealed(document)[CHECKSUM] != document[CHECKSUM]:
        raise UserError(f"{path} {CHANGED}: {remedy}")


def check_name(path: Path, name: str, own: Any, remedy: str = AGAIN) -> None:
    """Compare the name that a file or folder has with the one that it carries. UserError: they differ: it was copied or
    renamed."""
    if NAMED.fullmatch(name) and own != name:
        raise UserError(f"{path} belongs to {own or 'something else'}, not to {name}: {remedy}")


def check_checksum(path: Path, wanted: str | None, remedy: str = AGAIN) -> None:
    """Compare a file with its SHA-256 (None: not recorded, by an earlier version). UserError: it is missing or another
    file."""
    try:
        changed = wanted is not None and sha256_file(path) != wanted
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; {remedy}") from None
    if changed:
        raise UserError(f"{path} {CHANGED}: {remedy}")


def read_record(path: Path, keys: Iterable[str] = (), remedy: str = AGAIN) -> dict[str, Any]:
    """A JSON file of results that holds `keys`, compared with its checksum. UserError: it is missing or damaged, or
    lacks one."""
    document = read_json(path)
    lacking = sorted(set(keys) - set(document)) if isinstance(document, dict) else ["entries"]
    if lacking:
        raise UserError(f"{path} is damaged or of another version (no {', '.join(lacking)}): {remedy}")
    check_seal(path, document, remedy)
    return dict(document)


def read_training(folder: Path, files: Iterable[str] = (HISTORY, WEIGHTS)) -> dict[str, Any]:
    """A run's training.json, compared with the folder's name; and those `files` compared with their checksums in it.
    UserError: something is missing or does not belong to the run."""
    remedy = f"delete {folder} and repeat the command, which trains it again, or put its own files back"
    training = read_record(folder / TRAINING, remedy=remedy)
    check_name(folder / TRAINING, folder.name, training.get("run"), remedy)
    for file in files:
        check_checksum(folder / file, training.get("sha256", {}).get(file), remedy)
    return training


def check_evaluation(path: Path, evaluation: dict[str, Any], training: dict[str, Any]) -> None:
    """Compare an evaluation in a run's folder with the run, its weights, its data set and its own settings. UserError:
    it is of another run, of other weights, data or settings."""
    run = str(training.get("run"))
    check_seal(path, evaluation)
    if evaluation.get("run", run) != run or evaluation.get("fingerprint") != training.get("fingerprint"):
        raise UserError(f"{path} belongs to {evaluation.get('run')}, not to {run}: {AGAIN}")
    weights, own = training.get("sha256", {}).get(WEIGHTS), evaluation.get("weights_sha256")
    if weights and own and weights != own:
        raise UserError(f"{path} was measured with other weights than the run has now: {AGAIN}")
    trained_on, measured_on = (
        document.get("dataset", {}).get("identity") for document in (training, evaluation)
    )
    if trained_on and measured_on and trained_on != measured_on:
        raise UserError(f"{path} was measured on another data set than the run's: {AGAIN}")
    if NAMED.fullmatch(path.stem):
        try:
            settings = EvaluationConfig.model_validate_json(json.dumps(evaluation.get("evaluation")))
        except ValidationError:
            raise UserError(f"{path} holds settings of another version: {AGAIN}") from None
        marks = {"ties": evaluation["ties"]} if "ties" in evaluation else {}  # none: by an earlier version
        check_name(path, path.stem, f"evaluation-{evaluation_fingerprint(settings, marks)[:8]}")


def weights_metadata(path: Path) -> dict[str, Any]:
    """`config` and `meta` of a file of weights. UserError: it is missing, damaged, or not of a run."""
    try:
        with path.open("rb") as file:
            size = min(int.from_bytes(file.read(8), "little"), path.stat().st_size)
            metadata = json.loads(file.read(size))["__metadata__"]
        config = json.loads(metadata["config"])
        # earlier versions wrote two entries
        meta = config.pop("meta", None) or json.loads(metadata["meta"])
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: train the run first") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{path} is damaged or no run's weights.safetensors ({error!r}): a damaged one is trained again once its "
            "run folder is deleted; other models are converted with `python -m trm convert`"
        ) from error
    return {"config": config, "meta": meta}
