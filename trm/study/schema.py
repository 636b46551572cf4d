"""The typed schema of one run: model, data, training, evaluation; and what does not affect results.

Every field carries its meaning; `config/schema.json` and `config/README.md` are generated from here. Defaults are the
paper's Sudoku recipe (arXiv 2510.04871) and are frozen: a run's identity holds only what differs from them, so a new
field with a neutral default leaves every existing fingerprint as it was (tests/study/golden_fingerprints.json).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

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

from trm.study.tasks import TaskName, spec_of

Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]


def _range(value: Any) -> Any:
    """Check a range of clues or hints before pydantic does: its own message for a tuple takes several lines."""
    items = list(value) if isinstance(value, list | tuple) else []
    if len(items) != 2 or not all(type(item) is int and item >= 0 for item in items) or items[0] > items[1]:
        raise ValueError("must be two whole numbers [least, most], 0 or more, the smaller one first")
    return tuple(items)


def _hints(value: Any) -> Any:
    if value == "auto":
        return value
    try:
        return _range(value)
    except ValueError as error:
        raise ValueError(f"{error}, or auto") from None


Range = Annotated[tuple[int, int], BeforeValidator(_range)]


class Section(BaseModel):
    """Immutable, strict: an unknown key or a value of another type is an error, never ignored or converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @field_validator("*", mode="wrap")
    @classmethod
    def _unconverted(cls, value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        """pydantic would read `yes` as 1 and '1e-3' as 0.001. A whole number may be given as 1e3."""
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
    """Blocks in the one shared stack (L_layers)."""
    h_cycles: Count = 3
    """T: rounds of a supervision step; only the last is backpropagated (H_cycles)."""
    l_cycles: Count = 6
    """n: updates of z_L in a round (L_cycles)."""
    halt_max_steps: Count = 16
    """Nsup: most supervision steps a puzzle gets (halt_max_steps)."""
    expansion: Positive = 4.0
    """SwiGLU's inner width is expansion * width * 2/3, rounded up to a multiple of `multiple`."""
    multiple: Annotated[int, Field(ge=8, le=1024, multiple_of=8)] = 256
    """SwiGLU's inner width is a multiple of this number. At 256 (the paper's) all networks narrower than 96 have the
    same inner width; a smaller number lets it follow the width and the expansion."""
    puzzle_tokens: Annotated[int, Field(ge=0)] = 16
    """Tokens prepended for the puzzle embedding (puzzle_emb_len); its first one carries the vector. 0: none."""
    position: Literal["none", "rope", "learned"] = "none"
    """Position encoding: none, rotary (arXiv 2104.09864; needs the attention mixer) or a learned vector a token."""


class SourceConfig(Section):
    """One of several sources of Sudoku in one pool (`data.source: mix`)."""

    kind: Literal["file", "generate"]
    """`file`: the next one of `data.files`; `generate`: made offline."""
    share: NonNegative = 1.0
    """Part of the training rows drawn from this source, relative to the other sources' shares."""
    clues: Range | None = None
    """Fewest and most clues: of generated puzzles (null: minimal ones), or of the file's puzzles that are taken."""
    min_rating: Whole = 0
    """Fewest guesses of the rating solver."""
    pool: Whole = 0
    """Puzzles to generate."""


class DataStage(Section):
    """One stage of a curriculum over the training data."""

    until: Fraction
    """The stage ends at this fraction of the steps; after the last one the values beside `curriculum` hold."""
    hints: Range | None = None
    """`data.hints` during the stage; null: as there."""
    shares: tuple[NonNegative, ...] | None = None
    """The sources' shares during the stage, one for each of `data.sources`; null: their own."""


class DataConfig(Section):
    """What the puzzles are, where they come from, and how many are used."""

    task: TaskName = "sudoku"
    """Kind of puzzle."""
    source: Literal["generate", "csv", "official", "json", "mix"] = "official"
    """`generate` offline (ARC: small tasks of five kinds); `csv` files in the official layout; `official`: the
    published data set (needs network); `json`: ARC challenge and solution files; `mix`: the several `sources`."""
    files: tuple[str, ...] = ()
    """Paths or gs:// URIs read by `csv`, `json` and `mix`. Not part of the identity: their checksums are."""
    sha256: tuple[str, ...] = ()
    """Checksums of `files`, in their order; filled in by itself for local files, needed for gs:// ones."""
    box_rows: Annotated[int, Field(ge=2, le=5)] = 3
    """Sudoku: rows of a box; the grid has box_rows * box_cols rows."""
    box_cols: Annotated[int, Field(ge=2, le=5)] = 3
    """Sudoku: columns of a box."""
    clues_min: Annotated[int, Field(ge=0)] = 0
    """Generated Sudoku: fewest clues (0: as few as uniqueness allows)."""
    clues_max: Annotated[int, Field(ge=0)] = 0
    """Generated Sudoku: most clues (0: minimal puzzles only)."""
    min_rating: Annotated[int, Field(ge=0)] = 0
    """Generated Sudoku: fewest guesses of the rating solver."""
    pool: Annotated[int, Field(ge=0)] = 0
    """Generated puzzles, mazes or tasks before splitting (0: just as many as the splits ask for; 4x4 Sudoku: every
    class)."""
    maze_size: Annotated[int, Field(ge=5, le=64)] = 30
    """Maze: side of the square grid."""
    min_path: Annotated[int, Field(ge=0)] = 110
    """Maze: fewest cells of the shortest path."""
    unique_path: bool = False
    """Generated maze: only mazes with one shortest path."""
    arc_side: Annotated[int, Field(ge=4, le=30)] = 30
    """ARC: side of the square canvas; tasks with a larger grid are left out."""
    train_puzzles: Annotated[int, Field(ge=1)] | None = 1000
    """Original training puzzles (nested: a smaller set is a subset of a larger one). null: all there are."""
    augmentations: Annotated[int, Field(ge=0)] = 1000
    """Symmetric copies of each training puzzle beside the original."""
    validation_puzzles: Annotated[int, Field(ge=0)] = 2048
    """Puzzles that choose the best checkpoint and draw the curves; never tested on."""
    test_puzzles: Annotated[int, Field(ge=1)] | None = None
    """Test puzzles. null: all there are."""
    sources: tuple[SourceConfig, ...] = ()
    """Sudoku: sources joined into one pool by `source: mix`, each with its share of the training rows. Of equivalent
    puzzles the first is kept; validation and test puzzles come from all sources by their numbers of puzzles."""
    hints: Annotated[Literal["auto"] | tuple[int, int], BeforeValidator(_hints)] = (0, 0)
    """Sudoku: extra clues copied from the answer into each training row, a random number in [least, most] of random
    cells, drawn again for every row of every step. `auto`: the number follows the model's own success, so that about
    half of the rows are solved (see docs/training.md)."""
    held_out_hints: Range = (0, 0)
    """Sudoku: extra clues [least, most] of the validation and test puzzles, drawn once."""
    curriculum: tuple[DataStage, ...] = ()
    """Stages of the training data with their own hints and shares before those of `hints` and `sources`."""
    seed: int = 0
    """Seed of generation, splits and augmentation."""

    @property
    def gives_hints(self) -> bool:
        """Whether training rows get extra clues at any time."""
        return self.hints != (0, 0) or any(stage.hints for stage in self.curriculum)

    @property
    def file_sources(self) -> int:
        """How many sources read a file."""
        return sum(source.kind == "file" for source in self.sources)

    @property
    def all_shares(self) -> list[tuple[float, ...]]:
        """Shares of the sources, the stages' and the sources' own; none where there are no sources."""
        own = [tuple(source.share for source in self.sources)] if self.sources else []
        return [stage.shares for stage in self.curriculum if stage.shares] + own


class CurriculumStage(Section):
    """One stage of a recursion curriculum."""

    until: Fraction
    """The stage ends at this fraction of the steps."""
    h_cycles: Count
    """T during the stage."""
    l_cycles: Count
    """n during the stage."""


class TrainingConfig(Section):
    """Optimisation, deep supervision and halting (sections 4-5 of the paper)."""

    batch_size: Count = 768
    """Global batch: rows of one optimiser step over all workers."""
    steps: Count = 65104
    """Optimiser steps, one supervision step each. In the file `rows` (offered rows) or `epochs` (passes over the
    original puzzles) may be given instead; they are converted to steps, so equal points stay one run."""
    lr: Positive = 1e-4
    """Peak learning rate. In the study file `lr_scaling`, one name or a list, multiplies it: with `lr_base_batch`,
    linear (batch / base, arXiv 1706.02677) or sqrt (its square root, arXiv 1404.5997); with `lr_base_width`, width
    (base / d_model, as muP does for Adam, arXiv 2203.03466) or sqrt_width (its square root)."""
    puzzle_lr: Positive | None = None
    """Learning rate of the puzzle embedding; null: as lr."""
    warmup_steps: Annotated[int, Field(ge=0)] = 2000
    """Steps of linear warm-up from 0; step 1 uses lr / warmup_steps."""
    lr_min_ratio: Fraction = 1.0
    """Half a cosine (arXiv 1608.03983, without restarts) from the end of the warm-up to this fraction of lr; 1:
    constant."""
    weight_decay: NonNegative = 1.0
    """Decoupled weight decay of every parameter but the puzzle embedding."""
    puzzle_weight_decay: NonNegative = 1.0
    """Decoupled weight decay of the touched rows of the puzzle embedding."""
    optimizer: Literal["adam_atan2", "adamw", "lion"] = "adam_atan2"
    """Adam-atan2 (arXiv 2407.05872), AdamW (1711.05101) or Lion (2302.06675)."""
    beta1: Fraction = 0.9
    """First-moment decay."""
    beta2: Fraction = 0.95
    """Second-moment decay (Lion: momentum decay)."""
    max_grad_norm: Positive | None = None
    """Gradients of a larger global norm are scaled down to it (arXiv 1211.5063); null: none."""
    ema: Fraction = 0.999
    """Decay of the weights' exponential moving average, used for evaluation (as in the paper); 0: off."""
    precision: Literal["auto", "float32", "bfloat16", "float16", "bfloat16_weights"] = "bfloat16"
    """Matrix product precision. float16 has a dynamic loss scale (arXiv 1710.03740); bfloat16_weights also holds the
    weights in bfloat16; `auto`: bfloat16 where the machine is fast at it, else float32 (recorded in the result)."""
    micro_batches: Count = 1
    """Micro-batches whose gradients are accumulated for one step; must divide batch_size."""
    exploration: Fraction = 0.1
    """Probability that a row's halting is delayed to a random minimum of steps, 2 to halt_max_steps (arXiv
    2506.21734)."""
    exploration_final: Fraction | None = None
    """Exploration at the last step, reached linearly; null: constant."""
    halting_cost: NonNegative = 0.0
    """Compute-aware halting, in the spirit of the ponder cost of arXiv 1603.08983: weight in the loss of the expected
    number of further supervision steps, sum over k = 1..R of (1 - p)^k at halt probability p with R steps left."""
    curriculum: tuple[CurriculumStage, ...] = ()
    """Recursion curriculum: stages with their own (T, n) before the model's own; each is one static program."""
    snapshots: Annotated[int, Field(ge=0)] = 0
    """Weight snapshots at equal distances over the last half of the steps, for averaging (arXiv 1803.05407)."""
    init_from: str | None = None
    """Name of a finished run whose weights training starts from."""


class PlacementConfig(Section):
    """Where and how a run must compute, for the experiments that ask just that (port_validation, ema_sync). Everywhere
    else it keeps its defaults, and the machine is not part of a run's identity."""

    backend: Literal["any", "cpu", "cuda", "xla"] = "any"
    """The backend; `any`: whatever the machine has."""
    workers: Annotated[int, Field(ge=0)] = 0
    """Processes that share every batch (hosts of a TPU pod); 0: as many as the job is given."""
    network: Literal["any", "plain"] = "any"
    """`plain`: the network as its definition, differentiated by autograd; `any`: the backend's own faster form."""
    average: Literal["every", "first"] = "every"
    """Which workers keep the moving average: every one, or the first alone, which hands it to the others at each
    validation. Under SPMD (xla) there is one average by construction."""


class RunConfig(Section):
    """Everything a trained model depends on, and nothing else: its fingerprint is the run's identity."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    placement: PlacementConfig = PlacementConfig()
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of initial weights, sampling and exploration."""

    @model_validator(mode="after")
    def _consistent(self) -> RunConfig:
        model, data, training = self.model, self.data, self.training
        checks = [
            (
                model.mixer == "attention" and model.d_model % model.heads,
                f"model.d_model={model.d_model} is not divisible by model.heads={model.heads}",
            ),
            (
                model.position == "rope" and model.mixer != "attention",
                "model.position=rope needs model.mixer=attention",
            ),
            (
                model.position == "rope" and model.mixer == "attention" and model.d_model // model.heads % 2,
                f"model.position=rope needs an even head width, not {model.d_model // model.heads}",
            ),
            (
                training.batch_size % training.micro_batches,
                f"training.batch_size={training.batch_size} is not divisible by "
                f"training.micro_batches={training.micro_batches}",
            ),
            (
                any(a.until >= b.until for a, b in zip(training.curriculum, training.curriculum[1:])),
                "training.curriculum: the stages' `until` must rise",
            ),
            (
                any(a.until >= b.until for a, b in zip(data.curriculum, data.curriculum[1:])),
                "data.curriculum: the stages' `until` must rise",
            ),
            (
                (data.source == "mix") != bool(data.sources),
                "data.source=mix needs data.sources, and data.sources needs data.source=mix",
            ),
            (
                data.source == "mix" and data.file_sources not in (len(data.files), len(data.sha256)),
                f"data.sources has {data.file_sources} of the kind file, data.files has {len(data.files)}",
            ),
            (
                any(source.kind == "generate" and not source.pool for source in data.sources),
                "data.sources: a source of the kind generate needs a pool above 0",
            ),
            (
                any(stage.shares and len(stage.shares) != len(data.sources) for stage in data.curriculum),
                f"data.curriculum: give one share for each of the {len(data.sources)} data.sources",
            ),
            (
                any(not any(shares) for shares in data.all_shares),
                "data.sources: the shares are all 0; give one above 0",
            ),
            (
                len(data.sources) * (len(data.sources) - 1) > training.batch_size,
                f"training.batch_size={training.batch_size} is too small for {len(data.sources)} data.sources",
            ),
            (
                data.hints == "auto" and any(stage.hints for stage in data.curriculum),
                "data.curriculum: a stage has `hints`, but data.hints=auto already chooses them; keep one of the two",
            ),
            (
                not spec_of(data.task).takes_hints and (data.gives_hints or data.held_out_hints != (0, 0)),
                f"data.hints, data.held_out_hints: a question of {data.task} has no clues to add",
            ),
            (
                data.clues_min > data.clues_max,
                f"data.clues_min={data.clues_min} is above data.clues_max={data.clues_max}",
            ),
            (
                self.placement.average == "first" and not training.ema,
                "placement.average=first needs a moving average: training.ema above 0",
            ),
            (
                self.placement.backend == "xla"
                and self.placement != PlacementConfig(backend="xla", workers=self.placement.workers),
                "placement.network and placement.average are for the cpu and cuda backends: under xla the network has "
                "one form and the moving average is one by construction",
            ),
            (
                data.source in ("csv", "json") and not (data.files or data.sha256),
                f"data.source={data.source} needs data.files: the path of at least one file",
            ),
        ]
        for wrong, sentence in checks:
            if wrong:
                raise ValueError(sentence)
        return self


class EvaluationConfig(Section):
    """How a trained model is measured; part of the identity of an evaluation, never of the run."""

    weights: Literal["ema", "raw", "average"] = "ema"
    """Which weights: the moving average, the last ones, or the mean of the last `average` snapshots."""
    average: Annotated[int, Field(ge=0)] = 0
    """Snapshots in the mean (weights: average)."""
    unroll: tuple[Count, ...] = ()
    """Supervision steps at which answers are counted; empty: the model's halt_max_steps."""
    confident: bool = False
    """Also measure stopping each puzzle when its halt logit is positive (compacted batches)."""
    restarts: tuple[Count, ...] = ()
    """Also measure the best of K noisy restarts, picked by the halt logit, for each K."""
    noise: NonNegative = 0.0
    """Standard deviation of the normal noise added to the initial state of every restart but the first."""
    copies: Annotated[int, Field(ge=0)] | None = None
    """ARC: augmented copies of each test input that vote beside the original; null: all that were trained."""
    train_puzzles: Annotated[int, Field(ge=0)] = 1000
    """Training puzzles (originals) measured too, for the train-test gap."""
    test_puzzles: Annotated[int, Field(ge=1)] | None = None
    """Test puzzles measured; null: all."""
    steps: Count | None = None
    """Supervision steps of restarts, votes and traces; null: the model's halt_max_steps."""
    traces: Annotated[int, Field(ge=0)] = 4
    """Test puzzles whose answer after each supervision step is kept, for the step-by-step figure."""


class RuntimeConfig(Section):
    """What is logged, kept or printed. Never changes a result; not part of a run's identity."""

    log_every: Count = 100
    """Steps between metrics rows and progress lines."""
    evals: Annotated[int, Field(ge=1)] = 10
    """Validation passes in a run, at equal distances (the last one at the last step)."""
    checkpoint_minutes: Positive = 10.0
    """Minutes between checkpoints."""
    stop_after_minutes: Positive | None = None
    """Minutes after which a process ends with a checkpoint and exit code 75; the next start resumes. null: never."""
    keep_checkpoints: Count = 5
    """Newest checkpoints kept, besides the best."""
    carry_limit_mb: NonNegative = 512.0
    """Carry rows above this size on one host are left out of checkpoints; slots restart."""
    xla_metrics_every: Count = 1000
    """Steps between torch_xla metrics reports."""
    profile_steps: Annotated[str, Field(pattern=r"^\d+:\d+$")] | None = None
    """FIRST:LAST: write a profiler trace of these steps beside the checkpoints; null: none."""
    tensorboard: bool = False
    """Write TensorBoard event files beside the checkpoints."""
    wandb: Literal["off", "offline", "online"] = "off"
    """Weights & Biases logging; the run's id is its fingerprint."""
    checksum_every: Annotated[int, Field(ge=0)] = 1000
    """Steps between comparisons of the workers' weight checksums; 0: only at the start."""
