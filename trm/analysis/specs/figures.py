"""What every figure kind may be asked for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from trm.analysis.specs.base import Column, Form, Fraction, Metric, Scalar, Spec, Where
from trm.analysis.specs.fits import FitSpec


class Reported(Spec):
    """A published value, drawn grey and never fitted."""

    x: float
    """Place on the x axis."""
    y: float
    """Value in the figure's metric (error as a share of one)."""
    label: str = "paper"
    """Words beside the mark."""


class Figure(Spec):
    """What every figure has in common."""

    kind: str
    name: str | None = None
    """File name; null: the kind and what distinguishes it."""
    title: str | None = None
    """Heading; null: written from the columns."""
    where: Where = {}
    """Only rows with these values."""

    @property
    def slug(self) -> str:
        """A file name for the figure, unique among differently drawn figures of an experiment."""
        if self.name:
            return self.name
        parts = [self.kind]
        for field in ("x", "y", "metric", "cost", "hue"):
            value = getattr(self, field, None)
            default = type(self).model_fields[field].default if field in type(self).model_fields else None
            if isinstance(value, str) and (value != default or field == "x"):
                parts.append(value.rsplit(".", 1)[-1].replace("/", "-"))
        return "-".join(parts)

    def fits(self, experiment: str) -> tuple[FitSpec, ...]:
        """The fits this figure reads when it belongs to `experiment`."""
        return ()

    def experiments(self, experiment: str) -> tuple[str, ...]:
        """The experiments whose tables the figure reads."""
        return (experiment,)


class LawFigure(Figure):
    """Metric against one variable, log-log: seeds, mean and interval, fitted law with ribbon,
    extrapolation, equation."""

    kind: Literal["law"] = "law"
    x: Column
    y: Metric = "error"
    hue: Column | None = None
    """One colour, and one fit, for each value."""
    fit: Form | Literal["auto"] | None = "auto"
    """Law to fit; null: none, the points alone."""
    envelope: bool = False
    """Also the lower envelope over `hue` (best error for any compute)."""
    reported: tuple[Reported, ...] = ()
    extrapolate: Annotated[float, Field(ge=1)] = 4.0
    """The law is drawn dashed this far beyond the data."""
    target: Fraction | None = None
    """Accuracy whose price in `x` is read off the law."""
    sources: tuple[str, ...] = ()
    """Experiments shown together (with `hue: experiment`, one law each); empty: the figure's own."""

    def experiments(self, experiment: str) -> tuple[str, ...]:
        return self.sources or (experiment,)

    def fits(self, experiment: str) -> tuple[FitSpec, ...]:
        if self.fit is None:
            return ()
        return (
            FitSpec(
                experiments=self.experiments(experiment),
                form=self.fit,
                x=self.x,
                y=self.y,
                hue=self.hue,
                where=self.where,
                target=self.target,
            ),
        )


class AblationFigure(Figure):
    """Categorical comparison with a named baseline: values, and paired seed differences with intervals."""

    kind: Literal["ablation"] = "ablation"
    x: Column
    y: Metric = "exact_accuracy"
    hue: Column | None = None
    """Shown separately for each value, with the interaction: does the effect hold at another batch or
    model size?"""
    baseline: Scalar = None
    """Value of `x` the others are compared with; null: the scale's recipe, else the first."""
    second: tuple[Metric, ...] = ()
    """Further metrics in panels beside (wall_seconds, peak_memory_bytes, rows_per_second)."""


class HeatmapFigure(Figure):
    """Metric over two variables."""

    kind: Literal["heatmap"] = "heatmap"
    x: Column
    y: Column
    z: Metric = "exact_accuracy"
    hue: Column | None = None
    """One map for each value."""
    optimum: bool = False
    """Also the best `x` for each `y` with its power law (learning rate against batch size)."""

    def fits(self, experiment: str) -> tuple[FitSpec, ...]:
        if not self.optimum:
            return ()
        y = "error" if self.z == "exact_accuracy" else self.z
        return (
            FitSpec(
                experiments=(experiment,), form="optimum", x=self.x, second=self.y, y=y, where=self.where
            ),
        )


class CurvesFigure(Figure):
    """Learning curves: every seed faint, mean strong; beside them the train-test gap."""

    kind: Literal["curves"] = "curves"
    metric: str = "eval/exact_accuracy"
    """Column of history.csv."""
    hue: Column | None = None
    """Colour; null: the grid points."""
    against: Literal["step", "rows", "seconds", "flops"] = "step"
    """The x axis."""
    gap: bool = True
    """A panel with training and validation accuracy, and their difference on the finished runs."""
    metrics: tuple[str, ...] = ()
    """Further history columns, one panel each (train/loss, train/grad_norm)."""


class AgreementFigure(Figure):
    """Runs that ought to be the same, on other machines or kept in another way: curves overlaid, and how far each
    lies from the first grid point."""

    kind: Literal["agreement"] = "agreement"
    metrics: tuple[str, ...] = ("train/loss", "train/grad_norm")
    """Columns of history.csv, one column of panels each."""


class ParetoFigure(Figure):
    """Accuracy against a cost, with the Pareto frontier."""

    kind: Literal["pareto"] = "pareto"
    cost: Column = "train_flops"
    y: Metric = "exact_accuracy"
    hue: Column | None = None
    costs: tuple[Column, ...] = ()
    """Further costs, one panel each (wall_seconds, peak_memory_bytes)."""


class FrontierFigure(Figure):
    """Accuracy against test-time FLOPs: fixed steps, stop when confident, restarts; majority and oracle
    beside."""

    kind: Literal["frontier"] = "frontier"
    hue: Column | None = None
    """Grid points drawn as small panels; null: their mean over the experiment's only point."""
    fit: bool = True
    """Fit the error against test-time FLOPs of the fixed policy."""

    def fits(self, experiment: str) -> tuple[FitSpec, ...]:
        if not self.fit:
            return ()
        where = {**self.where, "policy": "fixed"}
        return (FitSpec(experiments=(experiment,), form="auto", x="flops_per_puzzle", where=where),)


class HaltingFigure(Figure):
    """Distribution of the first step whose halt logit is positive, by grid point."""

    kind: Literal["halting"] = "halting"
    hue: Column | None = None


class VotesFigure(Figure):
    """ARC tasks solved without voting, by the first answer of a vote, and with two attempts."""

    kind: Literal["votes"] = "votes"


class BatchFigure(Figure):
    """Steps, puzzles and FLOPs to the targets against batch size; critical batch; gradient noise scale."""

    kind: Literal["batch"] = "batch"
    targets: tuple[Fraction, ...] = (0.80, 0.85)
    """Validation accuracies counted to."""
    x: Column = "training.batch_size"

    def fits(self, experiment: str) -> tuple[FitSpec, ...]:
        return tuple(
            FitSpec(
                experiments=(experiment,),
                form="critical_batch",
                x=self.x,
                y="steps_to_target",
                where=self.where,
                target=target,
            )
            for target in self.targets
        )


class StepsFigure(Figure):
    """Puzzles solved step by step: one grid per supervision step, wrong cells marked."""

    kind: Literal["steps"] = "steps"
    puzzles: Annotated[int, Field(ge=1, le=8)] = 3
    columns: Annotated[int, Field(ge=2, le=16)] = 6
    """Supervision steps shown of each puzzle (the first, the last, and where the answer changes most)."""


class RepeatedFigure(Figure):
    """The repeated-data law over several experiments: error against effective data U + U R*(1 -
    exp(-R/R*))."""

    kind: Literal["repeated"] = "repeated"
    sources: tuple[str, ...] = ("data_size", "augmentation")
    """Experiments fitted together."""
    x: Column = "data.train_puzzles"
    second: Column = "data.augmentations"

    def fits(self, experiment: str) -> tuple[FitSpec, ...]:
        return (
            FitSpec(
                experiments=self.sources,
                form="repeated_data",
                x=self.x,
                second=self.second,
                where=self.where,
            ),
        )

    def experiments(self, experiment: str) -> tuple[str, ...]:
        return self.sources


class JointFigure(Figure):
    """Error against training FLOPs for several sizes, with the joint law E + A N^-a + B C^-b."""

    kind: Literal["joint"] = "joint"
    x: Column = "parameters"
    second: Column = "train_flops"

    def fits(self, experiment: str) -> tuple[FitSpec, ...]:
        return (
            FitSpec(experiments=(experiment,), form="joint", x=self.x, second=self.second, where=self.where),
        )


class Panel(LawFigure):
    """A panel of `scaling_laws`: a law figure of a named experiment."""

    experiment: str

    def fits(self, experiment: str = "") -> tuple[FitSpec, ...]:
        found = LawFigure.fits(self, self.experiment)
        if self.x == "flops_per_puzzle":
            return FrontierFigure(where=self.where).fits(self.experiment) if found else ()
        return found


class ScalingLawsFigure(Figure):
    """Study-wide: error against parameters, unique puzzles, augmentation, training and test-time FLOPs."""

    kind: Literal["scaling_laws"] = "scaling_laws"
    panels: tuple[Panel, ...] = Field(min_length=1)

    def fits(self, experiment: str = "") -> tuple[FitSpec, ...]:
        found = {fit.model_dump_json(): fit for panel in self.panels for fit in panel.fits()}
        return tuple(found.values())

    def experiments(self, experiment: str = "") -> tuple[str, ...]:
        return tuple(dict.fromkeys(panel.experiment for panel in self.panels))


class ComputeFrontierFigure(Figure):
    """Study-wide: error against training FLOPs and against test-time FLOPs of every run, with the
    frontiers."""

    kind: Literal["compute_frontier"] = "compute_frontier"
    sources: tuple[str, ...] = Field(min_length=1)
    """Experiments shown."""

    def experiments(self, experiment: str = "") -> tuple[str, ...]:
        return self.sources


AnyFigure = Annotated[
    LawFigure
    | AblationFigure
    | HeatmapFigure
    | CurvesFigure
    | AgreementFigure
    | ParetoFigure
    | FrontierFigure
    | HaltingFigure
    | VotesFigure
    | BatchFigure
    | StepsFigure
    | RepeatedFigure
    | JointFigure
    | ScalingLawsFigure
    | ComputeFrontierFigure,
    Field(discriminator="kind"),
]
FIGURE: TypeAdapter[Figure] = TypeAdapter(AnyFigure)
"""Validates one entry of an experiment's `figures`: FIGURE.validate_python({"kind": "law", ...})."""
