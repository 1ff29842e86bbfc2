"""The method over the parameters that it takes, the protocol's fallback over the rest."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from levelfield.bench.digest import derive_seed
from levelfield.bench.errors import named
from levelfield.bench.quiet import quiet_imports
from levelfield.bench.spec import (
    GIVEN_TO_INNER,
    BenchError,
    OptimizerSpec,
    ParamInfo,
    Protocol,
)
from levelfield.bench.stepper import (
    AdapterContext,
    BuildContext,
    GradientStepper,
    Parameter,
    Stepper,
    merge_groups,
)


def split_roles(
    spec: OptimizerSpec, params: tuple[Parameter, ...]
) -> tuple[tuple[Parameter, ...], tuple[Parameter, ...]]:
    """The parameters that the method takes and the rest, every one exactly once.

    Raises:
        BenchError: the method takes roles that this model has none of.
    """
    taken = tuple(param for param in params if param.info.role in spec.roles)
    if not taken:
        raise BenchError(
            f"{spec.name} takes {', '.join(spec.roles)} parameters and this model has none",
            f"the model has {', '.join(sorted({param.info.role for param in params}))}",
        )
    return taken, tuple(param for param in params if param.info.role not in spec.roles)


def fallback_optimizer(
    protocol: Protocol, rest: tuple[Parameter, ...], hparams: Mapping[str, Any]
) -> torch.optim.Optimizer | None:
    """The protocol's AdamW over the roles that a method does not take; None if it takes all."""
    if not rest:
        return None
    fallback = protocol.fallback
    multiplier = hparams.get("embed_multiplier", 1.0)
    groups = [
        {
            "params": [param.tensor for param in rest if param.info.role == role],
            "lr": fallback.lr * (multiplier if role in ("embed", "head") else 1.0),
            "weight_decay": fallback.weight_decay if role in protocol.decay_roles else 0.0,
        }
        for role in dict.fromkeys(param.info.role for param in rest)
    ]
    betas = (fallback.beta1, fallback.beta2)
    return torch.optim.AdamW(merge_groups(groups), betas=betas, eps=fallback.eps, fused=True)


def trained_by(spec: OptimizerSpec) -> tuple[OptimizerSpec, ...]:
    """A method, and the one under it where it is an adapter."""
    if spec.inner is None:
        return (spec,)
    from levelfield.bench.reference import load_spec

    return spec, load_spec(spec.inner).value


def inner_hparams(inner: OptimizerSpec, hparams: Mapping[str, Any]) -> dict[str, Any]:
    """The hyper-parameters of the method under an adapter: its own defaults, the scale that is
    tuned, what an adapter may set for it, and the rate of the head, which any method's groups have.
    """
    defaults = inner.defaults()
    given = [name for name in (inner.scale, *GIVEN_TO_INNER) if name in defaults]
    named = (*given, "embed_multiplier")
    return {**defaults, **{name: hparams[name] for name in named if name in hparams}}


def adapt(
    spec: OptimizerSpec,
    protocol: Protocol,
    model: nn.Module,
    hparams: Mapping[str, Any],
    seed: int,
) -> nn.Module:
    """The model as an adapter method trains it; as it is for any other."""
    if spec.adapter is None:
        return model
    generator = torch.Generator()
    generator.manual_seed(derive_seed("adapter", seed))
    context = AdapterContext(
        kind=protocol.task.kind,
        total_steps=protocol.budget.steps,
        warmup_steps=protocol.warmup_steps,
        generator=generator,
    )
    # Libraries that make adapters draw from the global generator.
    with quiet_imports(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed("adapter", seed))
        adapted: nn.Module = resolve(spec.adapter)(model, context, hparams)
    return adapted


def adapted_shape(spec: OptimizerSpec, protocol: Protocol) -> nn.Module:
    """The model of a protocol as a method trains it at its defaults; weights are not read, so its
    values mean nothing.

    Raises:
        BenchError: an adapter that does not go with the model.
    """
    from levelfield.bench import tasks

    bare = replace(protocol, model=replace(protocol.model, pretrained=False))
    return adapt(spec, protocol, tasks.open_task(bare, "cpu").build_model(0), spec.defaults(), 0)


def claimed_state_bytes(
    spec: OptimizerSpec,
    protocol: Protocol,
    infos: tuple[ParamInfo, ...],
    hparams: Mapping[str, Any],
    progress: float,
) -> int:
    """What the spec claims for its roles, and AdamW's two moments for the rest; for an adapter,
    what the method under it claims besides its own.

    Raises:
        BenchError: the claim fails, or is no number of bytes.
    """
    below = 0
    if spec.inner is not None:
        inner = trained_by(spec)[1]
        values = inner_hparams(inner, hparams)
        below = claimed_state_bytes(inner, protocol, infos, values, progress)
    taken = tuple(info for info in infos if info.role in spec.roles)
    rest = sum(
        2 * info.nbytes for info in infos if info.role not in spec.roles and info.tied_to is None
    )
    if spec.inner is not None:
        rest = below  # which holds the rest of its own
    try:
        own = spec.state_bytes(taken, hparams, progress)
    except BenchError:
        raise
    except Exception as error:  # a plug-in's claim, or values that it was not made for
        raise BenchError(
            f"state_bytes of {spec.name} fails: {named(error)}", "see its claim"
        ) from error
    if isinstance(own, bool) or not isinstance(own, int) or own < 0:
        raise BenchError(
            f"state_bytes of {spec.name} gives {own!r}", "accepted: a whole number of bytes from 0"
        )
    return own + rest


def try_out(spec: OptimizerSpec) -> None:
    """Build a method at its defaults over a tiny model and take a step: its values are refused
    now, and not by the first trial. What an adapter can take depends on the model's layers: it is
    left to that.

    Raises:
        BenchError: whatever the method raises, in one line.
    """
    from levelfield.bench.check_bench import Bench

    if spec.adapter is not None:
        return
    try:
        with torch.compiler.set_stance("force_eager"):
            Bench(spec, spec.defaults()).take(1)
    except BenchError:
        raise
    except Exception as error:
        raise BenchError(
            f"{spec.name} cannot take a step: {named(error)}",
            "accepted: values that the method can take",
        ) from error


def build_stepper(
    spec: OptimizerSpec,
    protocol: Protocol,
    model: nn.Module,
    params: tuple[Parameter, ...],
    hparams: Mapping[str, Any],
    seed: int,
) -> Stepper:
    """The method over its roles and the fallback over the rest, as one stepper."""
    taken, rest = split_roles(spec, params)
    device = params[0].tensor.device
    generator = torch.Generator(device=device)
    generator.manual_seed(derive_seed("method", seed))
    fallback = fallback_optimizer(protocol, rest, hparams)
    context = BuildContext(
        params=taken,
        model=model,
        total_steps=protocol.budget.steps,
        warmup_steps=protocol.warmup_steps,
        tokens_per_step=protocol.tokens_per_step,
        device_type=device.type,
        generator=generator,
        clip_norm=protocol.clip_norm,
        decay_roles=protocol.decay_roles,
        rest=fallback,
        inner=_inner(spec, protocol, model, params, hparams, seed),
    )
    with quiet_imports():
        built = resolve(spec.build)(context, hparams)
    if not isinstance(built, torch.optim.Optimizer):
        if not isinstance(built, Stepper):
            raise BenchError(
                f"build of {spec.name} returned a {type(built).__name__}",
                "accepted: a torch.optim.Optimizer or a Stepper",
            )
        return built
    optimizers = [built] if fallback is None else [built, fallback]
    _check_cover(spec, params, optimizers)
    return GradientStepper(optimizers, clip_norm=protocol.clip_norm)


def _inner(
    spec: OptimizerSpec,
    protocol: Protocol,
    model: nn.Module,
    params: tuple[Parameter, ...],
    hparams: Mapping[str, Any],
    seed: int,
) -> Callable[[], Stepper] | None:
    """Makes the method under an adapter; None for a method that has none."""
    if spec.inner is None:
        return None
    inner = trained_by(spec)[1]
    values = inner_hparams(inner, hparams)
    return lambda: build_stepper(inner, protocol, model, params, values, seed)


def _check_cover(
    spec: OptimizerSpec, params: tuple[Parameter, ...], optimizers: list[torch.optim.Optimizer]
) -> None:
    """Every trainable parameter belongs to exactly one group."""
    held = [id(p) for opt in optimizers for group in opt.param_groups for p in group["params"]]
    names = {id(param.tensor): param.info.name for param in params}
    missing = [names[key] for key in names if key not in held]
    twice = sorted({names.get(key, "an unknown tensor") for key in held if held.count(key) > 1})
    if missing or twice:
        raise BenchError(
            f"{spec.name} must hold every parameter exactly once: "
            f"{missing[:3]} left out, {twice[:3]} held twice",
            "build the groups from ctx.params",
        )


def resolve(build: Callable[..., Any] | str) -> Callable[..., Any]:
    """A spec's `build` as a callable: it may be lazy, as "module:attr"."""
    if callable(build):
        return build
    module, _, attribute = build.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found
