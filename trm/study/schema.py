"""The typed schema of one run: model, data, training, evaluation, and settings that do not affect results.

`config/schema.json` and `config/README.md` are generated from the docstrings. Defaults are the paper's Sudoku recipe
(arXiv 2510.04871) and are frozen: a run's identity holds only the differences from them, so a new field with a neutral
default changes no existing fingerprint (tests/study/golden_fingerprints.json).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

TASKS = {"sudoku": "trm.tasks.sudoku", "maze": "trm.tasks.maze", "arc": "trm.tasks.arc"}
"""Name -> package with the modules `spec` and `task`, imported when first needed. A new task is a line here and its
folder (docs/extending.md)."""
if TYPE_CHECKING:
    TaskName = str
else:
    TaskName = Literal[tuple(TASKS)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
MOST = 10**9
"""Largest number of anything: a mistyped one would plan centuries, or overflow later."""
Count = Annotated[int, Field(ge=1, le=MOST)]
Whole = Annotated[int, Field(ge=0, le=MOST)]


def _range(value: Any) -> Any:
    """Check a range of clues or hints before pydantic does, whose message for a tuple takes several lines."""
    items = list(value) if isinstance(value, list | tuple) else []
    if len(items) != 2 or not all(type(item) is int and item >= 0 for item in items) or items[0] > items[1]:
        raise ValueError("must be two whole numbers [least, most], 0 or more, the smaller one first")
    return tuple(items)


Range = Annotated[tuple[int, int], BeforeValidator(_range)]


class Section(BaseModel):
    """Immutable and strict: unknown keys and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="wrap")
    @classmethod
    def _unconverted(cls, value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        """Refuse what pydantic would convert, such as `yes` to 1 and '1e-3' to 0.001; 1e3 is a whole number."""
        result = validate(value)
        kind = {bool: "bool", int: "int", float: "float"}.get(type(result))
        if kind and type(result) is not type(value) and (isinstance(value, bool | str) or kind == "bool"):
            raise PydanticCustomError(f"{kind}_type", "wrong type")
        return result


class ModelConfig(Section):
    """The network (sections 2-4 of the paper)."""

    mixer: Literal["mlp", "attention"] = "mlp"
    """How tokens are mixed: SwiGLU over the token axis (`mlp`) or bidirectional self-attention (`attention`)."""
    d_model: Annotated[int, Field(ge=8, le=16384)] = 512
    """Width of a token vector."""
    heads: Count = 8
    """Attention heads; must divide d_model. Read by the attention mixer only."""
    layers: Count = 2
    """Blocks in the shared stack (L_layers)."""
    h_cycles: Count = 3
    """T: rounds per supervision step; only the last is backpropagated (H_cycles)."""
    l_cycles: Count = 6
    """n: updates of z_L per round (L_cycles)."""
    halt_max_steps: Count = 16
    """Nsup: maximal supervision steps per puzzle (halt_max_steps)."""
    expansion: Positive = 4.0
    """The inner width of a SwiGLU is expansion * width * 2/3, rounded up to a multiple of `multiple`."""
    multiple: Annotated[int, Field(ge=8, le=1024, multiple_of=8)] = 256
    """The inner width of a SwiGLU is a multiple of this number. At 256 (as in the paper) all networks narrower than 96
    have the same inner width; with a smaller number it follows the width and the expansion."""
    puzzle_tokens: Whole = 16
    """Tokens prepended for the puzzle embedding (puzzle_emb_len); the first one carries the vector. 0: none."""
    position: Literal["none", "rope", "learned"] = "none"
    """Position encoding: none, rotary (arXiv 2104.09864; attention mixer only) or a learned vector per token."""


class DataStage(Section):
    """One stage of a curriculum over the training data."""

    until: Fraction
    """The stage ends at this fraction of the steps; after the last stage, the data's own values apply."""
    hints: Range | None = None
    """`data.hints` during the stage; null: no change."""
    shares: None = None
    """Always null: in the weights of earlier versions."""


class DataConfig(Section):
    """The puzzles: their kind, source and numbers."""

    task: TaskName = "sudoku"
    """Kind of puzzle."""
    source: Literal["generate", "csv", "official", "json"] = "official"
    """`generate`: generated offline (ARC: small tasks of five kinds); `csv`: files in the official layout; `official`:
    the published data set (needs network); `json`: ARC challenge and solution files."""
    files: tuple[str, ...] = ()
    """Paths or addresses in a bucket (gs://, s3://) read by `csv` and `json`. They count by their checksums, not their
    paths."""
    sha256: tuple[str, ...] = ()
    """Checksums of `files`, in the same order; computed for local files, required in a bucket."""
    names: tuple[str, ...] = ()
    """ARC: role and name of each of `files`, such as `evaluation/1ae2feb7`; computed. They say which tasks are tests,
    and name the task of a file that holds a single one."""
    box_rows: Annotated[int, Field(ge=2, le=5)] = 3
    """Sudoku: rows per box; the grid has box_rows * box_cols rows."""
    box_cols: Annotated[int, Field(ge=2, le=5)] = 3
    """Sudoku: columns per box."""
    clues_min: Whole = 0
    """Generated Sudoku: fewest clues (0: as few as uniqueness allows)."""
    clues_max: Whole = 0
    """Generated Sudoku: most clues (0: minimal puzzles only)."""
    min_rating: Literal[0] = 0
    """Always 0: part of the names of data sets."""
    pool: Whole = 0
    """Puzzles, mazes or tasks to generate before splitting (0: as many as the splits need; 4x4 Sudoku: every class)."""
    maze_size: Annotated[int, Field(ge=5, le=64)] = 30
    """Maze: side of the square grid."""
    min_path: Whole = 110
    """Generated maze: fewest cells of the shortest path."""
    unique_path: bool = False
    """Generated maze: only mazes with a single shortest path."""
    walls: Literal["random", "depth_first", "uniform"] = "random"
    """Generated maze: random walls, or a perfect maze, in which one path joins any two cells: the tree of a random
    depth-first search (long corridors) or a uniform spanning tree (many dead ends); maze_size must be odd."""
    arc_side: Annotated[int, Field(ge=4, le=30)] = 30
    """ARC: side of the square canvas; tasks with larger grids are left out."""
    arc_families: tuple[str, ...] = ()
    """Generated ARC tasks: families with grids of many sizes (recolour, mirror, fill, stack, middle), alternating;
    `a+b` applies b's rule to the output of a's; none: these five."""
    arc_pairs: Annotated[int, Field(ge=2, le=50)] = 10
    """Generated ARC tasks: pairs of a task, the last one hidden."""
    train_puzzles: Count | None = 1000
    """Original training puzzles (nested: a smaller set is a subset of a larger one). null: all."""
    augmentations: Whole = 1000
    """Augmented copies of each training puzzle besides the original."""
    validation_puzzles: Whole = 2048
    """Puzzles measured during training, for the curves and for choices between runs; never part of the test."""
    test_puzzles: Count | None = None
    """Test puzzles. null: all."""
    sources: tuple[()] = ()
    """Always empty: in the weights of earlier versions."""
    hints: Range = (0, 0)
    """Sudoku: extra clues copied from the answer into each training row: a random number in [least, most] of random
    cells, drawn anew for every row of every step."""
    held_out_hints: Range = (0, 0)
    """Sudoku: extra clues [least, most] of the validation and test puzzles, drawn once."""
    curriculum: tuple[DataStage, ...] = ()
    """Stages with other hints, before `hints` applies."""
    symmetry: Literal["random", "none"] = "random"
    """Puzzles from files: each under one random symmetry of the rules (copy 0 too), because published collections are
    often in a form that a model learns instead of the rules; `none`: as in the file."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    """Seed of generation, splits, symmetries and augmentation."""

    @property
    def gives_hints(self) -> bool:
        """Whether training rows get extra clues in any stage."""
        return self.hints != (0, 0) or any(stage.hints for stage in self.curriculum)


class CurriculumStage(Section):
    """One stage of a recursion curriculum."""

    until: Fraction
    """The stage ends at this fraction of the steps."""
    h_cycles: Count | None = None
    """T during the stage; null: the model's."""
    l_cycles: Count | None = None
    """n during the stage; null: the model's."""
    halt_max_steps: Count | None = None
    """Nsup during the stage, at most the model's; null: the model's."""


class TrainingConfig(Section):
    """Optimisation, deep supervision and halting (sections 4-5 of the paper)."""

    batch_size: Count = 768
    """Global batch: rows per optimiser step over all workers."""
    steps: Count = 65104
    """Optimiser steps, one supervision step each. In the study file `rows` (rows drawn), `epochs` (passes over the
    original puzzles) or `flops` (training compute) may be given instead; they are converted to steps, so equal points
    are one run."""
    lr: Positive = 1e-4
    """Peak learning rate. In the study file a rule may scale it, such as `lr_rule: {d_model: [64, -0.25], steps: [1200,
    -0.4]}`: lr times (value / base) ** power of each of d_model, layers, l_cycles, halt_max_steps, steps and batch_size
    (power 1: linear scaling, arXiv 1706.02677; 0.5: arXiv 1404.5997). An `lr` on a higher level replaces the rule."""
    puzzle_lr: Positive | None = None
    """Learning rate of the puzzle embedding; null: `lr`."""
    warmup_steps: Whole = 2000
    """Steps of linear warm-up from 0; step 1 uses lr / warmup_steps."""
    lr_min_ratio: Fraction = 1.0
    """Cosine decay (arXiv 1608.03983, without restarts) from the end of the warm-up to this fraction of lr; 1:
    constant."""
    weight_decay: NonNegative = 1.0
    """Decoupled weight decay of all parameters except the puzzle embedding."""
    puzzle_weight_decay: NonNegative = 1.0
    """Decoupled weight decay of the rows of the puzzle embedding that are in the batch."""
    optimizer: Literal["adam_atan2", "adamw", "lion", "muon"] = "adam_atan2"
    """Adam-atan2 (arXiv 2407.05872), AdamW (1711.05101), Lion (2302.06675), or Muon (2502.16982) for the matrices of
    the blocks with Adam-atan2 for the rest."""
    beta1: Fraction = 0.9
    """First-moment decay."""
    beta2: Fraction = 0.95
    """Second-moment decay (Lion: momentum decay)."""
    max_grad_norm: Positive | None = None
    """Gradients are clipped to this global norm (arXiv 1211.5063); null: no clipping."""
    ema: Decay = 0.999
    """Decay of the weights' exponential moving average, used for evaluation (as in the paper); 0: off. The average is
    bias-corrected (arXiv 1412.6980): it holds no share of the initial weights, however short the run."""
    precision: Literal["auto", "float32", "bfloat16", "float16", "bfloat16_weights"] = "bfloat16"
    """Precision of matrix products. float16 uses a dynamic loss scale (arXiv 1710.03740); bfloat16_weights also keeps
    the weights in bfloat16; `auto`: bfloat16 if the machine is fast at it, else float32 (recorded in the result)."""
    micro_batches: Count = 1
    """Micro-batches per step, whose gradients are accumulated; must divide batch_size."""
    exploration: Fraction = 0.1
    """Probability that a row must take a random minimum of steps, 2 to halt_max_steps, before it halts (arXiv
    2506.21734)."""
    exploration_final: Fraction | None = None
    """Exploration at the last step, approached linearly; null: constant."""
    halting_cost: NonNegative = 0.0
    """Compute-aware halting, similar to the ponder cost of arXiv 1603.08983: weight in the loss of the expected number
    of further supervision steps, the sum over k = 1..R of (1 - p)^k at halt probability p with R steps left."""
    start_noise: NonNegative = 0.0
    """Standard deviation of the normal noise on both start states of every row, as in EqR (arXiv 2605.21488); on a
    CPU only."""
    step_noise: NonNegative = 0.0
    """Standard deviation of the normal noise on the latent state after every supervision step; on a CPU only."""
    curriculum: tuple[CurriculumStage, ...] = ()
    """Recursion curriculum: stages with other (T, n, Nsup) before the model's own apply; each is a static program."""
    snapshots: Whole = 0
    """Weight snapshots, evenly spaced over the last half of the steps, for averaging (arXiv 1803.05407)."""
    init_from: str | None = None
    """Name of a finished run from whose weights training starts."""


class PlacementConfig(Section):
    """Where and how a run computes, for the experiments about just that (port_validation, ema_sync). Elsewhere it keeps
    its defaults, and the machine is not part of a run's identity."""

    backend: Literal["any", "cpu", "cuda", "xla"] = "any"
    """The backend; `any`: chosen by the machine."""
    workers: Whole = 0
    """Processes that share each batch (hosts of a TPU pod); 0: as many as the job is given."""
    network: Literal["any", "plain"] = "any"
    """`plain`: the network as defined, differentiated by autograd; `any`: the backend's own implementation."""
    average: Literal["every", "first"] = "every"
    """Which workers compute the moving average: all, or only the first, which sends it to the others at each
    validation. Under SPMD (xla) there is only one average."""


class RunConfig(Section):
    """All that a trained model depends on, and nothing else: its fingerprint is the run's identity."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    placement: PlacementConfig = PlacementConfig()
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of initial weights, sampling and exploration."""

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        model, data, training, placement = self.model, self.data, self.training, self.placement
        if model.mixer == "attention" and model.d_model % model.heads:
            raise ValueError(f"model.d_model={model.d_model} is not divisible by model.heads={model.heads}")
        if model.position == "rope" and model.mixer != "attention":
            raise ValueError("model.position=rope needs model.mixer=attention")
        if model.position == "rope" and model.d_model // model.heads % 2:
            raise ValueError(
                f"model.position=rope needs an even head width, not {model.d_model // model.heads}"
            )
        if training.batch_size % training.micro_batches:
            raise ValueError(
                f"training.batch_size={training.batch_size} is not divisible by "
                f"training.micro_batches={training.micro_batches}"
            )
        curricula: dict[str, Sequence[Any]] = {"training": training.curriculum, "data": data.curriculum}
        for name, stages in curricula.items():
            if any(a.until >= b.until for a, b in pairwise(stages)):
                raise ValueError(f"{name}.curriculum: the stages' `until` must increase")
        if any((stage.halt_max_steps or 0) > model.halt_max_steps for stage in training.curriculum):
            raise ValueError(
                f"training.curriculum: a stage's halt_max_steps is above model.halt_max_steps={model.halt_max_steps}, "
                "the most of a run"
            )
        if data.clues_min > data.clues_max:
            raise ValueError(f"data.clues_min={data.clues_min} is above data.clues_max={data.clues_max}")
        if placement.average == "first" and not training.ema:
            raise ValueError("placement.average=first needs a moving average: training.ema above 0")
        if placement.backend == "xla" and (placement.network, placement.average) != ("any", "every"):
            raise ValueError(
                "placement.network and placement.average are for the cpu and cuda backends: xla has one implementation "
                "and one moving average"
            )
        if data.source in ("csv", "json") and not (data.files or data.sha256):
            raise ValueError(f"data.source={data.source} needs data.files: at least one path")
        return self


class EvaluationConfig(Section):
    """How a trained model is evaluated; part of the evaluation's identity, not of the run's."""

    weights: Literal["ema", "raw", "average"] = "ema"
    """Weights to evaluate: the moving average, the last ones, or the mean of the last `average` snapshots."""
    average: Whole = 0
    """Snapshots to average (`weights: average`)."""
    unroll: tuple[Count, ...] = ()
    """Supervision steps after which accuracy is measured; empty: the model's halt_max_steps."""
    confident: bool = False
    """Also measure stopping each puzzle once its halt logit is positive; read off the pass of all steps."""
    restarts: tuple[Count, ...] = ()
    """Also measure, for each K, the best of K restarts, chosen by the halt logit."""
    start_noise: NonNegative = 0.0
    """Standard deviation of the normal noise on the start states of all restarts but the first. Without noise of either
    kind they see the puzzle under random symmetries of its rules instead."""
    step_noise: NonNegative = 0.0
    """Standard deviation of the normal noise on the latent state after every supervision step of all restarts but the
    first."""
    view_steps: Whole = 0
    """Supervision steps after which the network sees the cells of puzzle and state in another order that keeps the
    task's rules; 0: never."""
    view_puzzle_every: Count = 1
    """Of this many views one after another, the first sees the puzzle embedding and the others zeros; 1: all see it."""
    view_guesses: Whole = 0
    """Blank cells, the first in the order of the view, that every second view after step 16 sees filled with the last
    answer."""
    copies: Whole | None = None
    """ARC: augmented copies of each test input that vote besides the original; null: all that were trained."""
    train_puzzles: Whole = 1000
    """Training puzzles (originals) that are also evaluated, for the train-test gap."""
    test_puzzles: Count | None = None
    """Test puzzles to evaluate; null: all."""
    steps: Count | None = None
    """Supervision steps of restarts, votes and traces; null: the model's halt_max_steps."""
    traces: Whole = 4
    """Test puzzles whose answer after each supervision step is saved, for the step-by-step figure."""

    @model_validator(mode="after")
    def _consistent(self) -> EvaluationConfig:
        for name, unused in (("view_puzzle_every", 1), ("view_guesses", 0)):
            if (value := getattr(self, name)) != unused and not self.view_steps:
                raise ValueError(f"{name}={value} needs views: give view_steps, such as 2")
        return self


class RuntimeConfig(Section):
    """Logging and checkpoints. Never changes a result; not part of a run's identity."""

    log_every: Count = 100
    """Steps between metrics rows and progress lines."""
    evals: Count = 10
    """Validation passes per run, evenly spaced (the last one at the last step)."""
    checkpoint_minutes: Positive = 10.0
    """Minutes between checkpoints."""
    stop_after_minutes: Positive | None = None
    """Minutes after which the process saves a checkpoint and exits with code 75, to be resumed. null: never."""
    profile_steps: Annotated[str, Field(pattern=r"^\d+:\d+$")] | None = None
    """FIRST:LAST: write a profiler trace of these steps to the checkpoint folder; null: none."""
    tensorboard: bool = False
    """Write TensorBoard event files to the checkpoint folder."""
    wandb: Literal["off", "offline", "online"] = "off"
    """Weights & Biases logging; the run's id is its fingerprint."""
