"""One run's configuration given by hand: a RunConfig as JSON, with `--set key=value` and checksums filled in."""

from typing import Any

from trm.errors import UserError
from trm.io import json_argument
from trm.study.schema import RunConfig


def add_options(parser: Any) -> None:
    parser.add_argument(
        "--config", required=True, help="RunConfig (sections model, data, training): JSON text or a path"
    )
    parser.add_argument(
        "--set", dest="changes", action="append", default=[], metavar="KEY=VALUE",
        help="another value, such as training.steps=1000; may be repeated",
    )  # fmt: skip


def run_config(argument: str, changes: list[str], files: str = "") -> RunConfig:
    """The configuration that `trm data` and `trm train` share.

    The keys of the study file that resolve into others (training.rows, epochs, lr_rule) work here too, and the
    checksums of local `data.files` are filled in. A DataConfig alone, without sections, is taken as `data`.

    Args:
        argument: JSON text or the path of a JSON file.
        changes: `key=value` texts laid over it; values are read as YAML.
        files: comma-separated paths in place of `data.files`.

    Raises:
        UserError: naming the key and what is wrong with it.
    """
    from trm.pipeline.settings import parse_overrides
    from trm.study.grid import typed
    from trm.study.input_files import with_checksums
    from trm.study.merge import SECTIONS, flatten, merge_layers

    values, where = json_argument(argument, "--config"), "--config"
    if not isinstance(values, dict):
        raise UserError("--config must be a JSON object with the sections model, data and training")
    data = {"task", "source", "files", "train_puzzles", "box_rows"} & set(values)  # whose `seed` is its own
    if data or not any(key == "seed" or key.split(".")[0] in SECTIONS for key in values):
        values = {"data": values}
    given = parse_overrides(changes)
    seed = given.pop("seed", values.pop("seed", 0))
    if files:
        given["data.files"] = files.split(",")
    merged = merge_layers(flatten(values, where), flatten(given, "--set"))
    return typed(with_checksums(merged, where), seed, where)[0]
