"""The columns of a results table: label, unit, axis. Specs validate by them and figures write their axes from them."""

from dataclasses import dataclass

from trm.study.merge import SECTIONS


@dataclass(frozen=True)
class Label:
    """How a column is written on an axis and in a sentence."""

    name: str
    """Words, lower case, as in a sentence ("error on unseen puzzles")."""
    unit: str = ""
    """Unit after the name on an axis; empty: a pure number."""
    one: str = ""
    """The name in the singular, if its values are counts ("2 layers")."""
    log: bool = False
    """Whether the axis is logarithmic by default."""
    symbol: str = "x"
    """Letter of the quantity in equations."""
    offset: float = 0.0
    """Added before a logarithm is taken: 1 turns copies beside the original into versions of a puzzle."""
    binary: bool = False
    """Written in binary units: KiB, MiB, GiB."""
    percent: bool = False
    """Shares of one, written in per cent."""
    lower: bool = False
    """Whether a smaller value is the better one."""

    @property
    def axis(self) -> str:
        text = self.name[:1].upper() + self.name[1:]
        unit = "%" if self.percent else "" if self.binary else self.unit
        return f"{text} ({unit})" if unit and unit not in self.name.split() else text


METRICS: dict[str, Label] = {
    "error": Label("error on unseen puzzles", log=True, percent=True, symbol="e", lower=True),
    "exact_accuracy": Label("exact accuracy on unseen puzzles", percent=True),
    "cross_entropy": Label("test cross entropy", "nats per cell", log=True, symbol="H", lower=True),
    "accuracy": Label("cell accuracy on unseen puzzles", percent=True),
    "blank_accuracy": Label("accuracy on blank cells", percent=True),
    "validation_exact_accuracy": Label("exact accuracy on validation puzzles", percent=True),
    "validation_cross_entropy": Label(
        "validation cross entropy", "nats per cell", log=True, symbol="H", lower=True
    ),
    "train_exact_accuracy": Label("exact accuracy on training puzzles", percent=True),
    "train_test_gap": Label("gap between training and unseen puzzles", "percentage points", lower=True),
    "mean_steps": Label("mean supervision steps", "steps", lower=True),
    "wall_seconds": Label("training time", "s", log=True, lower=True),
    "rows_per_second": Label("training throughput", "puzzles/s", log=True),
    "flops_per_second": Label("training speed", "FLOP/s", log=True),
    "peak_memory_bytes": Label("peak memory", "bytes", log=True, binary=True, lower=True),
    "utilisation": Label("share of the device's peak speed", percent=True),
    "eval_puzzles_per_second": Label("test throughput", "puzzles/s", log=True),
    "loss_variance": Label("variance of the training loss, last tenth", log=True, lower=True),
    "grad_norm_variance": Label("variance of the gradient norm, last tenth", log=True, lower=True),
}
"""Measured quantities: the y axis."""
TARGETS = (80, 85)
"""Validation accuracies, in per cent, whose first crossing is in the table."""
for _target in TARGETS:
    for _key, _name, _unit in (
        ("steps", "steps", "steps"),
        ("seconds", "time", "s"),
        ("flops", "training compute", "FLOPs"),
    ):
        _words = f"{_name} to {_target} % validation accuracy"
        METRICS[f"{_key}_to_{_target}"] = Label(_words, _unit, log=True, lower=True)

DERIVED: dict[str, Label] = {
    "parameters": Label("parameters", log=True, symbol="N"),
    "train_flops": Label("training compute", "FLOPs", log=True, symbol="C"),
    "flops_per_puzzle": Label("test-time compute", "FLOPs per puzzle", log=True, symbol="F"),
    "eval_steps": Label(
        "supervision steps at test time", one="supervision step at test time", log=True, symbol="s"
    ),
    "clues": Label("clues", "clues"),
    "effective_depth": Label("depth of a step", "layers", log=True, symbol="\u2113"),
    "training_rows": Label("offered training puzzles", "puzzles", log=True, symbol="D"),
    "epochs": Label("puzzles finished per original puzzle", log=True),
    "distinct_rows": Label("distinct training puzzles, copies included", "puzzles", log=True, symbol="D"),
    "backend": Label("backend"),
    "workers": Label("workers"),
    "experiment": Label("experiment"),
    "label": Label("grid point"),
    "series": Label("setting"),
}
"""Derived quantities: the x axis, besides the keys of the configuration."""

CONFIG: dict[str, Label] = {
    "model.mixer": Label("token mixer"),
    "model.d_model": Label("width d", log=True, symbol="d"),
    "model.layers": Label("layers", one="layer", symbol="L"),
    "model.h_cycles": Label("outer cycles T", symbol="T"),
    "model.l_cycles": Label("inner cycles n", symbol="n"),
    "model.halt_max_steps": Label("supervision steps Nsup", log=True, symbol="s"),
    "data.train_puzzles": Label(
        "unique training puzzles", "puzzles", one="unique training puzzle", log=True, symbol="D"
    ),
    "data.augmentations": Label(
        "versions of each puzzle (1 + copies)", one="version of each puzzle", log=True, symbol="V", offset=1
    ),
    "training.flops": Label("training compute", "FLOPs", log=True, symbol="C"),
    "training.batch_size": Label("batch size", "puzzles", log=True, symbol="B"),
    "training.steps": Label("training steps", "steps", one="training step", log=True, symbol="S"),
    "training.lr": Label("learning rate", log=True, symbol="\u03b7"),
    "training.lr_min_ratio": Label("final / peak learning rate", log=True),
    "training.ema": Label("EMA decay"),
    "training.optimizer": Label("optimiser"),
    "training.precision": Label("precision"),
    "training.micro_batches": Label("micro-batches", one="micro-batch"),
    "training.curriculum": Label("recursion curriculum"),
    "training.exploration_final": Label("exploration at the end"),
    "training.halting_cost": Label("halting cost \u03bb"),
    "evaluation.weights": Label("evaluated weights"),
    "evaluation.average": Label("snapshots averaged"),
    "evaluation.view_guesses": Label(
        "cells guessed in every second view", one="cell guessed in every second view"
    ),
    "evaluation.view_puzzle_every": Label("views per one that sees the puzzle embedding"),
    "evaluation.view_steps": Label("supervision steps per view", one="supervision step per view"),
}
"""Keys of the configuration that have a better name than their own."""

HISTORY: dict[str, Label] = {
    "eval/exact_accuracy": Label("validation exact accuracy", percent=True),
    "eval/accuracy": Label("validation cell accuracy", percent=True),
    "eval/blank_accuracy": Label("validation accuracy on blank cells", percent=True),
    "eval/cross_entropy": Label("validation cross entropy", "nats per cell"),
    "train/exact_accuracy": Label("training exact accuracy", percent=True),
    "train/accuracy": Label("training cell accuracy", percent=True),
    "train/loss": Label("training loss", log=True),
    "train/lm_loss": Label("training cross entropy", "nats per cell", log=True),
    "train/grad_norm": Label("gradient norm", log=True),
    "train/steps": Label("supervision steps of a puzzle", "steps"),
    "train/lr": Label("learning rate"),
    "perf/rows_per_second": Label("throughput", "puzzles/s"),
}
"""Columns of history.csv that have a better name than their own."""


FOUND: dict[str, Label] = {
    "critical_batch": Label("critical batch", "puzzles"),
    "copies_worth": Label("worth of the augmented copies of a puzzle", "fresh puzzles at most"),
    "halted": Label("share of puzzles that reach a positive halt logit", percent=True),
    "solved": Label("share of puzzles solved", percent=True),
    "restart_rate": Label("chance of one attempt", percent=True),
    "restart_correlation": Label("correlation between attempts"),
    "tasks_solved": Label("share of tasks solved", percent=True),
}
"""Quantities that figures find out."""

GRAMMAR = (
    "Filled: in the fit. Hollow: predicted, left out or, of a difference, not significant. Bars and bands: 95 % "
    "intervals. Dotted: prediction."
)
"""How to read every figure; printed once in the report."""

FORM_NAMES = {
    "constant": "a constant",
    "power_law": "a power law",
    "power_law_floor": "a power law with a floor",
    "exponential": "an exponential",
    "sigmoid": "a sigmoid in log x",
}
"""Forms of one variable in words."""


def config_keys() -> tuple[str, ...]:
    """Every `section.field` of the study's schema that a figure may show."""
    return tuple(f"{name}.{field}" for name, section in SECTIONS.items() for field in section.model_fields)


def label(column: str) -> Label:
    """The label of any column; an unnamed key is written as its last part."""
    for table in (METRICS, DERIVED, CONFIG, HISTORY, FOUND):
        if column in table:
            return table[column]
    return Label(column.rsplit(".", 1)[-1].replace("_", " "))
