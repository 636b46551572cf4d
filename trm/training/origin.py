"""What a run says of its data, compared with each data set that it meets.

The metadata of a run's weights (`data`) hold the identity of its data set, the meaning of its puzzle identifiers, and
keys of its training puzzles, which are equal for equivalent puzzles.
"""

import base64
import json
import logging
from typing import Any

import numpy as np

from trm.errors import UserError
from trm.io import differences, dump
from trm.study.dataset_identity import dataset_identity, shape
from trm.study.fingerprint import digest
from trm.study.schema import RunConfig
from trm.tasks import task_of
from trm.training.dataset import Dataset
from trm.training.outputs import TrainedModel

log = logging.getLogger("trm")
GIVE = "give the data set that was built for this run"


def record(dataset: Dataset, config: RunConfig) -> dict[str, Any]:
    """What a run keeps of its data set."""
    keys = dataset.manifest.get("train_keys")
    if keys is None:  # of other tools, or of an earlier version
        keys = task_of(config.data.task).train_keys(config.data, dataset.split("train"))
    found = {"identity": dataset.identity, "identifiers": dataset.identifiers, "puzzles": keys}
    return found | {"train_puzzles": dataset.split("train").groups}


def check_config(dataset: Dataset, config: RunConfig) -> None:
    """Compare a data set with the config of a run that is to be trained on it. UserError: names what differs."""
    train, data = dataset.split("train"), config.data
    if not train.groups:
        raise UserError(f"{dataset.folder} holds no training puzzles: build it again")
    built, wanted = {"task": train.meta.task}, {"task": data.task}
    found = differences(built, wanted) or differences(
        {"cells per puzzle": train.meta.seq_len}, {"cells per puzzle": shape(data).seq_len}
    )
    if dataset.manifest and not found:
        built = dataset.manifest.get("config", {}) | {"augmentations": train.meta.augmentations}
        wanted = json.loads(dump(dataset_identity(data)))
        if "config" not in dataset.manifest:
            wanted = {name: wanted[name] for name in built}
        found = differences(built, wanted)
    for name, (there, here) in found.items():
        raise UserError(
            f"{dataset.folder} has {name if ' ' in name else f'data.{name}'} {there}, but the run's config has "
            f"{here}: {GIVE}"
        )


def check_run(trained: TrainedModel, dataset: Dataset) -> bool:
    """Compare a data set with a run that is to be tested on it; returns whether it is the run's own.

    Another one is said, unless it has puzzle identifiers, whose vectors the run has learnt.

    Raises:
        UserError: names what differs, or the data set tests on training puzzles of the run.
    """
    meta, data, own = trained.meta, trained.config.data, dataset.split("train").meta
    sizes, boxes = dataset.puzzles, (own.box_rows, own.box_cols)
    pairs: dict[str, Any] = {name: (getattr(sizes, name), meta[name]) for name in ("seq_len", "vocab")}
    if any(boxes):
        pairs["boxes"] = boxes, (data.box_rows, data.box_cols)
    for name, (there, here) in pairs.items():
        if there != here:
            raise UserError(
                f"{dataset.folder} has {name} {there}, but the run was trained with {here}: give the run's data set"
            )
    known, same = _known(trained), is_own(trained, dataset)
    if not same and max(sizes.num_ids, meta["num_ids"]) > 1:
        _check_identifiers(trained, dataset, known)
    check_unseen(trained, dataset, "test")
    if not same:
        built, wanted = dataset.manifest.get("config", {}), _identity(trained)
        changed = differences(built, wanted) if built and wanted else {}
        what = "".join(f", data.{name} is {old}, not {new}" for name, (old, new) in changed.items())
        log.warning("%s is not the data set that the run was trained on%s", dataset.folder, what)
    return same


def is_own(trained: TrainedModel, dataset: Dataset) -> bool:
    """Whether the run was trained on this data set."""
    return bool(_known(trained)["identity"] == dataset.identity)


def check_unseen(trained: TrainedModel, dataset: Dataset, split: str) -> None:
    """Compare a split with the run's training puzzles. UserError: it holds some of them.

    Prints a warning if none is found, but the run keeps the keys of a part of its training puzzles only.
    """
    origin = _known(trained)
    seen, count = np.frombuffer(base64.b64decode(origin["puzzles"]), dtype=np.uint64), origin["train_puzzles"]
    divided = bool(dataset.manifest) and is_own(trained, dataset)  # when it was built
    if divided or not len(seen) or not dataset.has(split):
        return
    data = trained.config.data
    keys = task_of(data.task).keys_of(data, dataset.split(split))
    all_known = count is not None and count <= len(seen)
    if shared := int(np.isin(keys, seen).sum()):
        least = "" if all_known else "at least "
        raise UserError(
            f"{least}{shared:,} of the {len(keys):,} {split} puzzles in {dataset.folder} are, up to symmetry, puzzles "
            f"that {trained.meta['run']} was trained on: give the run's own data set, or one without them"
        )
    if not all_known:
        known = f"{len(seen):,} of the {f'{count:,}' if count else 'unknown number of'} puzzles"
        log.warning(
            "the %s puzzles in %s were compared with %s that %s was trained on: none is in both, but nothing is known "
            "of the other training puzzles",
            *(split, dataset.folder, known, trained.meta["run"]),
        )


def _check_identifiers(trained: TrainedModel, dataset: Dataset, known: dict[str, Any]) -> None:
    ids = known["identifiers"], dataset.identifiers
    more = dataset.puzzles.num_ids > trained.meta["num_ids"]
    if more or (ids[0] != ids[1] and (all(ids) or known["identity"])):
        raise UserError(
            f"the puzzle identifiers of {dataset.folder} are not those that the run has learnt "
            f"({dataset.puzzles.num_ids:,} here, {trained.meta['num_ids']:,} there): give the run's data set"
        )
    if not all(ids):
        log.warning("nothing says whether %s has the puzzle identifiers of the run", dataset.folder)


def _known(trained: TrainedModel) -> dict[str, Any]:
    """The run's record; of one by an earlier version, what its config tells."""
    known: dict[str, Any] = {"identity": "", "identifiers": "", "puzzles": ""}
    known["train_puzzles"] = trained.config.data.train_puzzles
    if "data" not in trained.meta and (identity := _identity(trained)):
        known["identity"] = digest(identity)
    return {name: trained.meta.get("data", {}).get(name, value) for name, value in known.items()}


def _identity(trained: TrainedModel) -> dict[str, Any]:
    """What the run's data set depends on by its config; empty: not known, as for a converted checkpoint."""
    try:
        found = {} if "source" in trained.meta else dataset_identity(trained.config.data)
    except UserError:
        return {}
    return dict(json.loads(dump(found)))
