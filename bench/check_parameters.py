"""Checks on parameters of every kind: no gradient, scalar, empty, frozen, tied, strided, bf16.

Most stand beside a plain matrix among bare parameters, roles by their shape: what a method does not
take is the fallback's, and the whole step has to hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from levelfield.bench.build import claimed_state_bytes
from levelfield.bench.check_bare import Bare, Target
from levelfield.bench.check_bench import PROTOCOL, Bench, Failure, equal, randn, refuse
from levelfield.bench.check_targets import mixed_target
from levelfield.bench.errors import named
from levelfield.bench.meter import state_bytes, state_tensors
from levelfield.bench.spec import OptimizerSpec, Role

STEPS = 6


def _odd(spec: OptimizerSpec, tensors: Mapping[str, Tensor], unused: str = "") -> Bare:
    """A plain parameter of a role that the method takes, and others; all are drawn to 0.3."""
    first: Role = "matrix" if "matrix" in spec.roles else spec.roles[0]
    plain = randn(6) if first == "vector" else randn(6, 4)
    given: dict[str, tuple[Role, Tensor]] = {"plain": (first, plain.float())}
    for name, tensor in tensors.items():
        given[name] = ("matrix" if tensor.ndim > 1 else "vector", tensor)

    def residual(p: Mapping[str, Tensor]) -> Tensor:
        used = [value.reshape(-1) for name, value in p.items() if name != unused]
        return (torch.cat(used) - 0.3).reshape(1, -1)

    return Bare(spec, Target(given, residual))


def _moves(bare: Bare, still: tuple[str, ...] = ()) -> str:
    """Take steps: all stay finite, all with elements move, but for those that must not."""
    before = bare.named()
    bare.take(STEPS)
    bare.finite(f"after {STEPS} steps")
    for name, after in bare.named().items():
        moved = not torch.equal(before[name], after)
        if moved and name in still:
            raise Failure(f"{name} moves without a gradient")
        if not moved and name not in still and after.numel():
            raise Failure(f"{name} does not move in {STEPS} steps")
    return f"finite and moved after {STEPS} steps"


def no_gradient(spec: OptimizerSpec) -> str:
    """`grad` None: left alone, and taken up when a gradient comes."""
    bare = _odd(spec, {"idle": randn(5, 3, seed=1).float(), "other": randn(5).float()}, "idle")
    _moves(bare, still=("idle",))
    bare.target.residual = lambda p: (torch.cat([v.reshape(-1) for v in p.values()]) - 0.3)[None]
    _moves(bare)
    return "left alone without a gradient, moved once there is one"


def zero_gradients(spec: OptimizerSpec) -> str:
    """Every gradient is zero in the first step."""
    refuse(spec, "zero_gradients")
    bare = Bare(spec, mixed_target(spec))
    bare.target.size = 0.0
    bare.take(1)
    bare.finite("after a step with zero gradients")
    bare.target.size = 1.0
    _moves(bare)
    return "a first step with zero gradients breaks nothing"


def scalars(spec: OptimizerSpec) -> str:
    refuse(spec, "scalar")
    return _moves(_odd(spec, {"scalar": torch.tensor(-1.0)}))


def vectors(spec: OptimizerSpec) -> str:
    refuse(spec, "vector")
    return _moves(_odd(spec, {"vector": randn(7).float(), "one": torch.tensor([2.0])}))


def empty(spec: OptimizerSpec) -> str:
    refuse(spec, "empty")
    shapes = {"no_rows": (0, 4), "no_columns": (4, 0), "nothing": (0,)}
    for name, shape in shapes.items():
        try:
            _moves(_odd(spec, {name: torch.zeros(shape)}))
        except Failure:
            raise
        except Exception as error:
            raise Failure(f"shape {shape}: {named(error)}") from None
    return f"shapes {', '.join(map(str, shapes.values()))} pass"


def frozen(spec: OptimizerSpec) -> str:
    """A weight of the model that is not trained."""
    kept: list[Tensor] = []

    def freeze(model: nn.Module) -> None:
        for module in model.modules():
            if isinstance(module, nn.Linear) and not kept:
                module.weight.requires_grad_(False)
                kept.append(module.weight)

    bench = Bench(spec, spec.defaults(), prepare=freeze)
    before = kept[0].clone()
    bench.take(STEPS)
    bench.finite(f"after {STEPS} steps")
    equal([before], kept, "a frozen weight moves")
    return "a frozen weight stays, the others train"


def tied(spec: OptimizerSpec) -> str:
    """Embedding and head are one tensor: stepped once, claimed once."""
    config = replace(PROTOCOL.model, tied=True)
    bench = Bench(spec, spec.defaults(), config=config)
    bench.take(PROTOCOL.budget.steps)
    bench.finite("with a tied head")
    tables = [m.weight for m in bench.model.modules() if isinstance(m, nn.Embedding)]
    head = bench.model.get_output_embeddings().weight  # type: ignore[operator]
    if head is not tables[0]:
        raise Failure("head and embedding are no longer one tensor")
    infos = tuple(param.info for param in bench.params)
    claimed = claimed_state_bytes(spec, PROTOCOL, infos, bench.hparams, 1.0)
    held = state_bytes(bench.stepper.optimizers)
    if held != claimed:
        raise Failure(f"with a tied head it claims {claimed:,} bytes of state and holds {held:,}")
    return f"one tensor still, {held:,} bytes of state as claimed"


def strided(spec: OptimizerSpec) -> str:
    """The layout in memory changes nothing but rounding."""
    refuse(spec, "strided")
    ends = []
    for contiguous in (False, True):
        views = {"transposed": randn(8, 5).float().t(), "every_other": randn(6, 10).float()[:, ::2]}
        made = {name: v.contiguous() if contiguous else v for name, v in views.items()}
        bare = _odd(spec, made)
        _moves(bare)
        ends.append(bare.weights())
    far = max(float((a - b).abs().max()) for a, b in zip(*ends, strict=True))
    if far > 1e-4:
        raise Failure(f"transposed and strided weights end up to {far:.2g} elsewhere")
    return f"transposed and strided weights end as contiguous ones do, to {far:.1g}"


def bf16(spec: OptimizerSpec) -> str:
    """bf16 weights: which states are bf16, and how many weights no longer move."""
    refuse(spec, "bf16")
    bench = Bench(spec, spec.defaults(), torch.bfloat16)
    bench.take(STEPS)
    bench.finite("with bf16 weights")
    before = bench.weights()
    bench.take(10)
    bench.finite("with bf16 weights")
    still = sum(int((a == b).sum()) for a, b in zip(before, bench.weights(), strict=True))
    total = sum(value.numel() for value in before)
    if still == total:
        raise Failure("no bf16 weight moves in 10 steps at the default")
    held = Counter(
        str(t.dtype).removeprefix("torch.")
        for t in state_tensors(bench.stepper.optimizers)
        if t.ndim
    )
    states = ", ".join(f"{count} {dtype}" for dtype, count in sorted(held.items())) or "none"
    return f"state tensors: {states}; {still / total:.0%} of the weights did not move in 10 steps"


def groups(spec: OptimizerSpec) -> str:
    """What happens in one group changes nothing in another; each keeps its own rate."""
    refuse(spec, "separate_groups")
    pair = {"matrix": randn(6, 4), "head": randn(9, 4), "embed": randn(8, 4), "vector": randn(5)}
    first = next(role for role in pair if role in spec.roles)
    given: dict[str, tuple[Role, Tensor]] = {
        role: (role, value.float())  # type: ignore[misc]
        for role, value in pair.items()
    }

    def start(others: float, **hparams: float) -> Bare:
        def residual(p: Mapping[str, Tensor]) -> Tensor:
            goal = [0.3 if role == first else others for role in p]
            parts = [v.reshape(-1) - g for v, g in zip(p.values(), goal, strict=True)]
            return torch.cat(parts).reshape(1, -1)

        target = Target({k: (role, v.clone()) for k, (role, v) in given.items()}, residual)
        return Bare(spec, target, hparams={**spec.defaults(), **hparams})

    one, other = start(0.3), start(-2.0)
    one.take(12)
    other.take(12)
    equal([one.named()[first]], [other.named()[first]], f"{first} depends on the other groups")
    if "embed_multiplier" not in spec.space:
        return "no group depends on another; one rate for all"
    apart = start(0.3, embed_multiplier=0.0)
    before = apart.named()
    apart.take(STEPS)
    for role, after in apart.named().items():
        moved = not torch.equal(before[role], after)
        if moved != (role not in ("embed", "head")):
            raise Failure(f"{role} {'moves' if moved else 'stands still'} at its own rate")
    return "no group depends on another; each keeps its own rate"
