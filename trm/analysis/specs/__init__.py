"""What an experiment may ask of the analysis: figures and the fits they read. Typed, without numpy or pandas.

The Snakefile validates and hashes these models; `python -m trm table|fit|plot|report` reads them as
JSON. A figure names columns: metrics (`error`), derived quantities (`parameters`, `train_flops`) or
configuration keys (`data.train_puzzles`). `figure.fits(experiment)` lists the FitSpecs whose fit.json
the figure reads, so that a rule can make them first.
"""

from trm.analysis.specs.base import Form, Scalar, Spec
from trm.analysis.specs.figures import (
    FIGURE,
    AblationFigure,
    AgreementFigure,
    AnyFigure,
    BatchFigure,
    ComputeFrontierFigure,
    CurvesFigure,
    Figure,
    FrontierFigure,
    HaltingFigure,
    HeatmapFigure,
    JointFigure,
    LawFigure,
    Panel,
    ParetoFigure,
    RepeatedFigure,
    Reported,
    ScalingLawsFigure,
    StepsFigure,
    VotesFigure,
)
from trm.analysis.specs.files import FailedRun, ReportExperiment, ReportSpec, TablePoint, TableRun, TableSpec
from trm.analysis.specs.fits import FitSpec

__all__ = [
    "FIGURE",
    "AblationFigure",
    "AgreementFigure",
    "AnyFigure",
    "BatchFigure",
    "ComputeFrontierFigure",
    "CurvesFigure",
    "FailedRun",
    "Figure",
    "FitSpec",
    "Form",
    "FrontierFigure",
    "HaltingFigure",
    "HeatmapFigure",
    "JointFigure",
    "LawFigure",
    "Panel",
    "ParetoFigure",
    "RepeatedFigure",
    "ReportExperiment",
    "ReportSpec",
    "Reported",
    "Scalar",
    "ScalingLawsFigure",
    "Spec",
    "StepsFigure",
    "TablePoint",
    "TableRun",
    "TableSpec",
    "VotesFigure",
]
