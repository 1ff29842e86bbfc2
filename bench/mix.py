"""`mix(matrix=muon,embed=adafactor,head=adamw,vector=signsgd)`: one method a role.

A mix is a spec like any other, made from the specs of its parts. Its scale dimension multiplies
the scales of all parts together, from their papers' defaults; roles that it does not name go to
the protocol's fallback. Bytes are the sum of the parts, and a mix of one method over all its roles
takes the very same steps as that method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from levelfield.bench import space
from levelfield.bench.registry import Entry, Loaded
from levelfield.bench.spec import ROLES, BenchError, OptimizerSpec, ParamInfo, Role

if TYPE_CHECKING:
    from levelfield.bench.stepper import BuildContext, GradientStepper

SCALE = "lr_scale"
FORM = "mix(matrix=NAME,embed=NAME,head=NAME,vector=NAME), roles left out go to the fallback"


def parse(reference: str, inside: Sequence[str]) -> dict[Role, str]:
    """Role -> reference, in the order of the roles.

    Args:
        reference: what the user wrote, for messages.
        inside: its parts.

    Raises:
        BenchError: a part without `=`, an unknown role, a role twice, nothing at all.
    """
    found: dict[str, str] = {}
    for part in inside:
        role, equals, name = (piece.strip() for piece in part.partition("="))
        if not equals or not name or role not in ROLES or role in found:
            raise BenchError(f"{reference}: {part!r} is no part of a mix", f"accepted: {FORM}")
        found[role] = name
    if not found:
        raise BenchError(f"{reference} mixes nothing", f"accepted: {FORM}")
    return {role: found[role] for role in ROLES if role in found}


def mixed(parts: Mapping[Role, Loaded[OptimizerSpec]]) -> Loaded[OptimizerSpec]:
    """The spec of a mix.

    Raises:
        BenchError: a part that does not take its role.
    """
    for role, part in parts.items():
        if role not in part.value.roles:
            raise BenchError(
                f"{part.value.name} does not take {role} parameters",
                f"it takes {', '.join(part.value.roles)}",
            )
    specs = {role: part.value for role, part in parts.items()}
    inside = ",".join(f"{role}={part.entry.reference}" for role, part in parts.items())
    shown = ",".join(f"{role}={spec.name}" for role, spec in specs.items())
    distinct = list({spec.name: spec for spec in specs.values()}.values())
    spec = OptimizerSpec(
        name=f"mix({shown})",
        family="mix",
        summary="one method a role: " + ", ".join(f"{s.name} on {r}" for r, s in specs.items()),
        paper="; ".join(dict.fromkeys(item.paper for item in distinct)),
        build=lambda ctx, hparams: _build(specs, ctx, hparams),
        space={
            SCALE: space.log(0.03, 30.0, default=1.0),
            "embed_multiplier": space.embed_multiplier(),
        },
        fixed=_fixed(specs),
        state_bytes=lambda params, hparams, progress: _bytes(specs, params, hparams, progress),
        scale=SCALE,
        roles=tuple(specs),
        passes=max(item.passes for item in distinct),
        refreshes="; ".join(item.refreshes for item in distinct if item.refreshes) or None,
        switches=lambda hparams, steps: _switches(specs, hparams, steps),
        cannot=tuple(sorted({word for item in distinct for word in item.cannot})),
        requires=tuple(sorted({name for item in distinct for name in item.requires})),
    )
    reference = f"mix({inside})"
    entry = Entry(name=spec.name, origin="a mix of " + shown, reference=reference)
    return Loaded(spec, entry, next(iter(parts.values())).path, tuple(parts.values()))


def part_hparams(spec: OptimizerSpec, role: Role, hparams: Mapping[str, Any]) -> dict[str, Any]:
    """The hyper-parameters of the part that takes `role`, read from the mix's own."""
    own = {
        name: hparams[f"{role}.{name}"] for name in spec.defaults() if f"{role}.{name}" in hparams
    }
    if "embed_multiplier" in spec.space:
        own["embed_multiplier"] = hparams["embed_multiplier"]
    own[spec.scale] = hparams[f"{role}.{spec.scale}"] * hparams[SCALE]
    return own


def _fixed(specs: Mapping[Role, OptimizerSpec]) -> dict[str, Any]:
    """Every part's values at its paper's defaults, named by role."""
    return {
        f"{role}.{name}": value
        for role, spec in specs.items()
        for name, value in spec.defaults().items()
        if name != "embed_multiplier"
    }


def _owners(specs: Mapping[Role, OptimizerSpec]) -> dict[str, list[Role]]:
    """Method -> its roles: one method over several roles is built once."""
    found: dict[str, list[Role]] = {}
    for role, spec in specs.items():
        found.setdefault(spec.name, []).append(role)
    return found


def _build(
    specs: Mapping[Role, OptimizerSpec], ctx: BuildContext, hparams: Mapping[str, Any]
) -> GradientStepper:
    import torch

    from levelfield.bench.build import resolve
    from levelfield.bench.stepper import GradientStepper

    optimizers = []
    for name, roles in _owners(specs).items():
        spec = specs[roles[0]]
        mine = tuple(param for param in ctx.params if param.info.role in roles)
        if not mine:
            continue
        part = resolve(spec.build)(replace(ctx, params=mine), part_hparams(spec, roles[0], hparams))
        if not isinstance(part, torch.optim.Optimizer):
            raise BenchError(
                f"{name} drives its own step and cannot be part of a mix",
                "accepted: methods that are a plain torch.optim.Optimizer",
            )
        optimizers.append(part)
    if ctx.rest is not None:
        optimizers.append(ctx.rest)
    return GradientStepper(optimizers, clip_norm=ctx.clip_norm)


def _bytes(
    specs: Mapping[Role, OptimizerSpec],
    params: Sequence[ParamInfo],
    hparams: Mapping[str, Any],
    progress: float,
) -> int:
    return sum(
        specs[roles[0]].state_bytes(
            tuple(info for info in params if info.role in roles),
            part_hparams(specs[roles[0]], roles[0], hparams),
            progress,
        )
        for roles in _owners(specs).values()
    )


def _switches(
    specs: Mapping[Role, OptimizerSpec], hparams: Mapping[str, Any], steps: int
) -> tuple[int, ...]:
    found: set[int] = set()
    for role, spec in specs.items():
        found |= set(spec.switches(part_hparams(spec, role, hparams), steps))
    return tuple(sorted(found))
