"""What every curvature method promises, as a class that their test files inherit from."""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from levelfield.bench.meter import state_bytes
from levelfield.bench.spec import OptimizerSpec, ParamInfo, Role
from levelfield.bench.stepper import Parameter
from levelfield.tests.optimizer_cases import (
    SHAPES,
    as_gradient,
    context,
    drive,
    gradient,
    gradients,
    measured_state_bytes,
    parameters,
    same_bits,
    values,
)

TOTAL = 24
MODEL: tuple[tuple[tuple[int, ...], Role], ...] = (*SHAPES, ((2, 3, 4), "matrix"))


class NoHostReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fails when a value is asked for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "a tensor read on the host"
        return func(*args, **(kwargs or {}))


def make(
    spec: OptimizerSpec, params: tuple[Parameter, ...], total: int = TOTAL, **changes: Any
) -> tuple[Any, Mapping[str, Any]]:
    """The spec's optimizer, out of its stepper if it has one, and the hyper-parameters."""
    hparams = {**spec.defaults(), **changes}
    assert callable(spec.build)
    built = spec.build(context(params, total_steps=total), hparams)
    optimizer = built if isinstance(built, torch.optim.Optimizer) else built.optimizers[0]
    assert isinstance(optimizer, torch.optim.Optimizer)
    return optimizer, hparams


class Promises:
    """Subclasses name the spec, and hyper-parameters that make every part of it act."""

    spec: ClassVar[OptimizerSpec]
    busy: ClassVar[Mapping[str, Any]] = {}

    def model(self, dtype: torch.dtype = torch.float32) -> tuple[Parameter, ...]:
        return parameters(MODEL, dtype, self.spec.roles)

    def make(self, params: tuple[Parameter, ...], **changes: Any) -> tuple[Any, Mapping[str, Any]]:
        return make(self.spec, params, **{**self.busy, **changes})

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
    def test_state_bytes_are_as_claimed_and_keep_their_shapes(self, dtype: torch.dtype) -> None:
        params = self.model(dtype)
        optimizer, hparams = self.make(params)
        infos = [param.info for param in params]
        shared = ParamInfo(name="twin", shape=(99, 9), role="matrix", tied_to=infos[0].name)
        claimed = self.spec.state_bytes(infos, hparams, 1.0)
        assert self.spec.state_bytes([*infos, shared], hparams, 0.0) == claimed
        for t in range(TOTAL):
            drive(optimizer, params, 1, start=t, total=TOTAL)
            # By storage too: a view would pin the whole of what it was cut from.
            assert measured_state_bytes(optimizer) == state_bytes([optimizer]) == claimed
        assert all(torch.isfinite(value).all() for value in values(params))

    def test_two_runs_have_the_same_bits_and_leave_the_global_generator_alone(self) -> None:
        runs = []
        for noise in (1, 2):
            torch.manual_seed(noise)
            here = torch.get_rng_state()
            params = self.model()
            optimizer, _ = self.make(params)
            drive(optimizer, params, TOTAL)
            assert torch.equal(torch.get_rng_state(), here)
            runs.append(values(params))
        assert same_bits(*runs)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_a_restored_run_goes_on_with_the_same_bits(self, dtype: torch.dtype) -> None:
        straight = self.model(dtype)
        optimizer, _ = self.make(straight)
        drive(optimizer, straight, TOTAL)
        for stop in (1, 6, 10, 16):
            first, second = self.model(dtype), self.model(dtype)
            before, _ = self.make(first)
            drive(before, first, stop, total=TOTAL)
            file = io.BytesIO()
            torch.save(before.state_dict(), file)
            file.seek(0)
            with torch.no_grad():
                for old, new in zip(first, second, strict=True):
                    new.tensor.copy_(old.tensor)
            after, _ = self.make(second)
            after.load_state_dict(torch.load(file, weights_only=False))
            drive(after, second, TOTAL - stop, start=stop, total=TOTAL)
            assert same_bits(values(straight), values(second)), stop
            assert after.refreshes == optimizer.refreshes

    def test_a_saved_state_does_not_change_with_its_optimizer(self) -> None:
        params = self.model()
        optimizer, _ = self.make(params)
        drive(optimizer, params, 3, total=TOTAL)
        saved, weights = copy.deepcopy(optimizer.state_dict()), values(params)
        other = self.model()
        second, _ = self.make(other)
        second.load_state_dict(saved)
        drive(second, other, 9, start=3, total=TOTAL)
        third_params = self.model()
        third, _ = self.make(third_params)
        third.load_state_dict(saved)
        with torch.no_grad():
            for param, weight in zip(third_params, weights, strict=True):
                param.tensor.copy_(weight)
        drive(third, third_params, 9, start=3, total=TOTAL)
        drive(optimizer, params, 9, start=3, total=TOTAL)
        assert same_bits(values(params), values(third_params))

    def test_parameters_without_gradient_are_left_alone(self) -> None:
        params = self.model()
        before = values(params)
        optimizer, _ = self.make(params, weight_decay=0.3)
        drive(
            optimizer,
            params,
            4,
            grad_of=lambda index, t: gradient(params[index].info.shape, t) if index % 2 else None,
        )
        for index, (param, old) in enumerate(zip(params, before, strict=True)):
            assert torch.equal(param.tensor, old) == (index % 2 == 0)
            assert index % 2 == 1 or param.tensor not in optimizer.state

    def test_gradients_are_not_overwritten(self) -> None:
        params = self.model()
        optimizer, _ = self.make(params, weight_decay=0.3)
        drive(optimizer, params, 3)
        for index, param in enumerate(params):
            last = as_gradient(gradients(param.info.shape, 3, index)[-1], param.tensor)
            assert param.tensor.grad is not None
            assert torch.equal(param.tensor.grad, last)

    def test_memory_layout_does_not_matter(self) -> None:
        results = []
        for layout in ("rows", "columns", "strided"):
            params = tuple(p for p in self.model(torch.float64) if len(p.info.shape) == 2)
            laid = []
            for param in params:
                data = param.tensor.detach()
                if layout == "columns":
                    data = data.mT.contiguous().mT
                elif layout == "strided":
                    data = data.repeat_interleave(2, dim=1)[:, ::2]
                laid.append(Parameter(param.info, torch.nn.Parameter(data)))
            optimizer, _ = self.make(tuple(laid), weight_decay=0.3)
            drive(optimizer, laid, 8, total=TOTAL)
            results.append(values(laid))
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=1e-8)

    def test_empty_and_0_dim_parameters(self) -> None:
        shapes: list[tuple[tuple[int, ...], Role]] = [
            ((0, 4), "matrix"),
            ((4, 0), "matrix"),
            ((), "vector"),
            ((0,), "vector"),
            ((3, 2), "matrix"),
        ]
        params = parameters(shapes, roles=self.spec.roles)
        before = values(params)
        optimizer, _ = self.make(params)
        drive(optimizer, params, 4, grad_of=lambda i, t: np.ones(params[i].info.shape))
        for param, old in zip(params, before, strict=True):
            assert torch.isfinite(param.tensor).all()
            assert torch.equal(param.tensor, old) == (old.numel() == 0)

    def test_zero_gradients_move_nothing_but_the_decay(self) -> None:
        params = self.model()
        before = values(params)
        optimizer, _ = self.make(params, weight_decay=0.0)
        drive(optimizer, params, 8, grad_of=lambda i, t: np.zeros(params[i].info.shape))
        assert same_bits(before, values(params))

    def test_a_rate_kept_as_a_tensor_gives_the_same_step(self) -> None:
        results = []
        for as_tensor in (False, True):
            params = self.model(torch.float64)
            optimizer, _ = self.make(params, weight_decay=0.3)
            for group in optimizer.param_groups:
                lr = torch.tensor(group["lr"], dtype=torch.float64)
                group["lr"] = lr if as_tensor else group["lr"]
            for t in range(7):
                for index, param in enumerate(params):
                    grad = gradients(param.info.shape, 7, index)[t]
                    param.tensor.grad = as_gradient(grad, param.tensor)
                optimizer.step()
            results.append(values(params))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-10)

    @pytest.mark.parametrize("lr_as_tensor", [False, True])
    def test_a_step_reads_nothing_on_the_host(self, lr_as_tensor: bool) -> None:
        params = self.model()
        optimizer, _ = self.make(params, weight_decay=0.3)
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(group["lr"]) if lr_as_tensor else group["lr"]
        for index, param in enumerate(params):
            grad = gradient(param.info.shape, index)
            param.tensor.grad = as_gradient(grad, param.tensor)
        with NoHostReads():  # type: ignore[no-untyped-call]
            for _ in range(9):
                optimizer.step()

    def test_a_closure_is_called_with_gradients_on(self) -> None:
        params = self.model()
        optimizer, _ = self.make(params)

        def closure() -> float:
            optimizer.zero_grad()
            loss = sum(param.tensor.square().sum() for param in params)
            assert isinstance(loss, torch.Tensor)
            loss.backward()  # type: ignore[no-untyped-call]
            return float(loss.detach())

        first = optimizer.step(closure)
        optimizer.step(closure)
        assert first is not None
        assert closure() < first

    def test_the_default_is_inside_the_space(self) -> None:
        for dim in self.spec.space.values():
            assert dim.low <= dim.default <= dim.high
