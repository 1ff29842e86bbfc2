"""Deflation of a bilinear problem: against plain numpy, and whether errors mend or freeze."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from levelfield.bench import bilinear, family, tasks
from levelfield.bench.audit_case import Case
from levelfield.bench.audit_trial import batches
from levelfield.bench.reference import load_spec
from levelfield.bench.registry import OPTIMIZERS, PROTOCOLS
from levelfield.bench.spec import BenchError, Protocol, TrialRecord
from levelfield.bench.store import Run
from levelfield.bench.train import Trial
from levelfield.reports import view
from levelfield.reports.sections import deflation as section
from levelfield.tests import report_records as fake
from levelfield.tests import small

Array = npt.NDArray[np.float64]
METHODS = (
    "deflation_parallel",
    "deflation_parallel_advance",
    "deflation_sequential",
    "deflation_sequential_work",
)
RECORD: Protocol = PROTOCOLS.load("deflation").value
MEMBERS = dict(family.members(RECORD))
SEEDS = range(5)
NOISES = ("exp", "exp_noise")
ROUNDS = 320
SMALL = "bilinear:spectrum=pow,noise=0.3,m=7,d=5,n=11,rank=4"


def short(steps: int, source: str = SMALL) -> Protocol:
    """The protocol on a small problem."""
    data = replace(RECORD.data, source=source, batch=bilinear.parse(source).n)
    return small.changed(replace(RECORD, variants=()), steps=steps, data=data)


def begun(reference: str, protocol: Protocol, seed: int = 0, **hparams: Any) -> Trial:
    trial = Trial(small.request(reference, protocol, seed=seed, **hparams), lambda progress: None)
    trial.load()
    trial.setup()
    return trial


@cache
def trained(method: str, member: str, seed: int) -> TrialRecord:
    record = small.train(method, MEMBERS[member], phase="final", seed=seed)
    assert record.status == "ok", record.reason
    return record


def series(record: TrialRecord, name: str) -> tuple[Array, Array]:
    """Rounds and values."""
    rounds, values = np.array(record.series[name]).T
    return rounds, values


# --- the textbook -------------------------------------------------------------------------------


class Textbook:
    """The algorithm as written down, one worker and one outer product at a time."""

    def __init__(self, problem: bilinear.Instance, eta: float, local: int) -> None:
        self.x, self.y, self.truth = problem.x, problem.y, problem.truth
        self.b, self.a = [row.copy() for row in problem.b], [row.copy() for row in problem.a]
        self.count, self.eta, self.local = len(self.b), eta, local
        self.samples = self.x.shape[1]
        self.bound = np.linalg.norm(self.x, 2) ** 2 / self.samples
        self.published = [np.zeros_like(self.y) for _ in self.b]
        # What exact deflation finds, from the right singular vectors of X.
        right = np.linalg.svd(self.x, full_matrices=False)[2]
        u, s, vt = np.linalg.svd(self.y @ right.T @ right)
        self.exact = [s[k] * np.outer(u[:, k], vt[k]) for k in range(self.count)]
        self.seen: dict[str, list[list[float]]] = {}

    def product(self, k: int) -> Array:
        return np.outer(self.b[k], self.a[k] @ self.x)

    def target(self, k: int, published: list[Array]) -> Array:
        left = self.y.copy()
        for earlier in range(k):
            left -= published[earlier]
        return left

    def improve(self, k: int, target: Array) -> None:
        for _ in range(self.local):
            b, a = self.b[k], self.a[k]
            residual = self.product(k) - target
            step = self.eta / (self.samples * self.bound)
            self.b[k] = b - step * residual @ self.x.T @ a / (a @ a)
            self.a[k] = a - step * self.x @ residual.T @ b / (b @ b)

    def note(self, number: int, begun: int, published: int, targets: Mapping[int, Array]) -> None:
        for k in range(begun):
            if k:
                gap = targets[k] - self.target(k, self.exact)
                row = [number, float(np.sqrt((gap**2).sum()))]
                self.seen.setdefault(f"mismatch_{k + 1}", []).append(row)
            error = float(np.sqrt(((self.product(k) - self.exact[k]) ** 2).sum()))
            self.seen.setdefault(f"component_error_{k + 1}", []).append([number, error])
        found = sum(np.outer(self.b[k], self.a[k]) for k in range(published))
        gap = np.sqrt(((found - self.truth) ** 2).sum() / (self.truth**2).sum())
        self.seen.setdefault("w_error", []).append([number, float(gap)])

    def parallel(self, rounds: int, advance: bool) -> None:
        for number in range(1, rounds + 1):
            snapshot = list(self.published)
            active = [k for k in range(self.count) if advance or k + 1 <= number]
            targets = {k: self.target(k, snapshot) for k in active}
            for k in active:
                self.improve(k, targets[k])
            for k in range(min(number, self.count)):
                self.published[k] = self.product(k)
            self.note(number, len(active), min(number, self.count), targets)

    def sequential(self, rounds: int, repeats: int) -> None:
        number = 0
        for k in range(self.count):
            for _ in range(rounds // self.count):
                number += 1
                target = self.target(k, self.published)
                for _ in range(repeats):
                    self.improve(k, target)
                now = {j: self.target(j, self.published) for j in range(k + 1)}
                self.note(number, k + 1, k + 1, now)
            self.published[k] = self.product(k)


WAYS: Mapping[str, Callable[[Textbook, int], None]] = {
    "deflation_parallel": lambda book, rounds: book.parallel(rounds, advance=False),
    "deflation_parallel_advance": lambda book, rounds: book.parallel(rounds, advance=True),
    "deflation_sequential": lambda book, rounds: book.sequential(rounds, 1),
    "deflation_sequential_work": lambda book, rounds: book.sequential(rounds, book.count),
}


@pytest.mark.parametrize("local", [1, 3])
@pytest.mark.parametrize("name", METHODS)
def test_every_round_is_the_textbooks(name: str, local: int) -> None:
    trial = begun(name, short(24), local_steps=local, lr=0.4)
    start = [trial.model.b.detach().numpy().copy(), trial.model.a.detach().numpy().copy()]
    problem = bilinear.Instance(
        trial.model.x.numpy(), trial.model.y.numpy(), trial.model.truth.numpy(), *start
    )
    book = Textbook(problem, 0.4, local)
    WAYS[name](book, 24)
    while trial.step < 24:
        trial.one_step()
    np.testing.assert_allclose(trial.model.b.detach().numpy(), np.stack(book.b), rtol=1e-9)
    np.testing.assert_allclose(trial.model.a.detach().numpy(), np.stack(book.a), rtol=1e-9)
    told = trial.stepper.optimizers[0].series
    assert told.keys() == book.seen.keys()
    for key, points in book.seen.items():
        np.testing.assert_allclose(told[key], points, rtol=1e-8, atol=1e-11, err_msg=key)


def test_the_loss_told_is_that_of_the_whole_model_before_the_round() -> None:
    trial = begun("deflation_parallel", short(6))
    model = trial.model
    for step in range(3):
        wanted = (model.b.T @ model.a @ model.x - model.y).square().sum() / (2 * 11)
        trial.one_step()
        assert float(trial.losses[step]) == pytest.approx(wanted.item(), rel=1e-6)


# --- self-correction ----------------------------------------------------------------------------


@pytest.mark.parametrize("member", NOISES)
@pytest.mark.parametrize("seed", SEEDS)
def test_parallel_deflation_mends_its_targets(seed: int, member: str) -> None:
    record = trained("deflation_parallel", member, seed)
    rounds, fourth = series(record, "mismatch_4")
    assert fourth[rounds == ROUNDS] / fourth[rounds == 50] < 1e-3
    for k in (2, 4, 6, 8):
        rounds, values = series(record, f"mismatch_{k}")
        late = (rounds >= 160) & (values > 1e-11)  # above what rounding leaves
        assert late.sum() > 60
        fit = np.polyfit(rounds[late], np.log(values[late]), 1)
        assert fit[0] < 0
        off = np.log(values[late]) - np.polyval(fit, rounds[late])
        assert 1 - off.var() / np.log(values[late]).var() > 0.99, k


@pytest.mark.parametrize("method", ["deflation_sequential", "deflation_sequential_work"])
@pytest.mark.parametrize("member", NOISES)
@pytest.mark.parametrize("seed", SEEDS)
def test_sequential_deflation_freezes_them(seed: int, member: str, method: str) -> None:
    record = trained(method, member, seed)
    for k in range(2, 9):
        rounds, values = series(record, f"mismatch_{k}")
        assert rounds[0] == 40 * (k - 1) + 1
        assert rounds[-1] == ROUNDS
        assert np.ptp(values) == 0.0, k
        assert values[0] > (0.5 if method == "deflation_sequential" else 1e-12), k
        rounds, errors = series(record, f"component_error_{k}")
        assert np.ptp(errors[rounds >= 40 * k]) == 0.0


@pytest.mark.parametrize("seed", SEEDS)
def test_without_noise_the_error_of_w_is_a_thousandth(seed: int) -> None:
    mended = trained("deflation_parallel", "exp", seed).report_loss
    frozen = trained("deflation_sequential", "exp", seed).report_loss
    assert mended is not None
    assert frozen is not None
    assert mended < 1e-3 * frozen


@pytest.mark.parametrize("seed", SEEDS)
def test_with_noise_the_error_of_w_is_that_of_the_best_fit_of_rank_k(seed: int) -> None:
    record = trained("deflation_parallel", "exp_noise", seed)
    model = begun("deflation_parallel", MEMBERS["exp_noise"], seed).model
    x, y, truth = (getattr(model, name).numpy() for name in ("x", "y", "truth"))
    left, values, right = np.linalg.svd(x, full_matrices=False)
    u, s, vt = np.linalg.svd(y @ right.T, full_matrices=False)
    best = (u[:, :8] * s[:8]) @ vt[:8] @ np.diag(1 / values) @ left.T
    oracle = np.linalg.norm(best - truth) / np.linalg.norm(truth)
    assert record.report_loss == pytest.approx(oracle, rel=1e-3)


def test_with_noise_frozen_errors_cost_a_little_in_the_middle_of_the_seeds() -> None:
    ratios = []
    for seed in SEEDS:
        mended, frozen = (
            trained(name, "exp_noise", seed).report_loss
            for name in ("deflation_parallel", "deflation_sequential")
        )
        assert mended is not None
        assert frozen is not None
        ratios.append(frozen / mended)
    assert np.median(ratios) > 1.005


# --- claims -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_passes_and_state_are_what_is_claimed(name: str) -> None:
    record, spec = trained(name, "exp", 0), OPTIMIZERS.load(name).value
    joining = sum(8 - number for number in range(1, 8)) / 8 if name == METHODS[0] else 0.0
    assert record.passes == pytest.approx(spec.passes * ROUNDS - joining)
    assert record.state_bytes == record.claimed_state_bytes == 0
    assert record.parameters == 8 * (30 + 24)
    assert load_spec(f"{name}(local_steps=3)").value.passes == 3 * spec.passes
    more = small.train(name, short(8), local_steps=3)
    assert more.passes == pytest.approx(3 * small.train(name, short(8)).passes)


def test_methods_share_problem_and_start_and_seeds_do_not() -> None:
    starts = {(seed, trained(m, "exp", seed).weights_sha256) for m in METHODS for seed in SEEDS}
    assert len(starts) == len({digest for _, digest in starts}) == len(SEEDS)
    one, other = (begun(METHODS[0], MEMBERS["exp"], seed).model for seed in (0, 1))
    assert not torch.equal(one.truth, other.truth)
    again = begun(METHODS[2], MEMBERS["exp"], 0).model
    assert torch.equal(one.y, again.y)


@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_trial_goes_on_bit_by_bit(name: str) -> None:
    straight, first, second = (begun(name, short(16)) for _ in range(3))
    for _ in range(16):
        straight.one_step()
    for _ in range(7):
        first.one_step()
    with torch.no_grad():
        second.model.load_state_dict(first.model.state_dict())
    second.stepper.load_state_dict(first.stepper.state_dict())
    second.step = 7
    for _ in range(9):
        second.one_step()
    assert torch.equal(straight.model.b, second.model.b)
    assert torch.equal(straight.model.a, second.model.a)
    assert straight.stepper.optimizers[0].series == second.stepper.optimizers[0].series


def test_other_precision_other_methods_and_parts_of_a_batch() -> None:
    single = small.train("deflation_parallel", replace(MEMBERS["exp"], precision="fp32"))
    assert single.status == "ok"
    assert series(single, "mismatch_2")[1][-1] < 1e-2
    assert small.train("adamw", short(60), lr=0.1).status == "ok"
    trial = begun("adamw", short(4))
    parts = trial.task.split(trial.order.next(), 4)
    on_device = [(trial.task.to_device(part, trial.device), share) for part, share in parts]
    losses = [share * trial.task.loss(trial.model, part).item() for part, share in on_device]
    assert sum(losses) == pytest.approx(trial.model().item(), rel=1e-12)


def test_on_another_task_it_is_unsupported() -> None:
    record = small.train("deflation_parallel")
    assert record.status == "unsupported"
    assert record.reason == "deflation_parallel is for tasks of kind bilinear"


# --- the task -----------------------------------------------------------------------------------


def test_what_is_drawn() -> None:
    sources = [bilinear.parse(MEMBERS[name].data.source) for name in ("exp", "exp_noise", "pow")]
    plain, noisy, flat = (bilinear.draw(source, 3) for source in sources)
    order = np.arange(8)
    values = np.linalg.svd(plain.truth, compute_uv=False)
    np.testing.assert_allclose(values[:8], 10 * 0.7**order)
    assert values[8:].max() < 1e-12
    np.testing.assert_allclose(np.linalg.svd(flat.truth, compute_uv=False)[:8], 10 / (order + 1))
    np.testing.assert_array_equal(plain.truth, noisy.truth)
    for one, other in ((plain, noisy), (plain, flat)):
        for name in ("x", "b", "a"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_allclose(plain.y, plain.truth @ plain.x, atol=1e-12)
    error = noisy.y - noisy.truth @ noisy.x
    assert error.std() == pytest.approx(0.5, rel=0.05)
    assert plain.x.std() == pytest.approx(1.0, rel=0.1)
    assert plain.b.std() == pytest.approx(0.1, rel=0.2)
    assert plain.a.std() == pytest.approx(0.1, rel=0.2)


def test_evaluation_is_the_relative_error_of_w() -> None:
    trial = begun("deflation_parallel", short(4))
    model = trial.model
    gap = model.b.T @ model.a - model.truth
    wanted = (gap.square().sum().sqrt() / model.truth.square().sum().sqrt()).item()
    for name in ("selection", "report", "control"):
        reading = trial.task.evaluate(model, name, 3, trial.device)
        assert reading.loss == pytest.approx(wanted, rel=1e-12)
    with torch.no_grad():
        u, s, vt = torch.linalg.svd(model.truth)
        model.b.copy_((u[:, :4] * s[:4]).T)
        model.a.copy_(vt[:4])
    assert trial.task.evaluate(model, "report", None, trial.device).loss < 1e-14


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"source": "markov:order=2"}, "accepted: bilinear:"),
        ({"source": "bilinear:spectre=exp"}, "unknown bilinear setting 'spectre=exp'"),
        ({"source": "bilinear:spectrum=ex"}, "spectrum='ex'"),
        ({"source": "bilinear:noise=-1"}, "noise=-1.0"),
        ({"source": "bilinear:noise=nan"}, "noise=nan"),
        ({"source": "bilinear:m=many"}, "is not a number"),
        ({"source": "bilinear:rank=25"}, "rank=25 with m=30, d=24, n=96"),
        ({"source": "bilinear:rank=0"}, "rank=0"),
        ({"batch": 48}, "data.batch=48, data.sequence=1"),
        ({"sequence": 2}, "data.sequence=2"),
    ],
)
def test_a_wrong_source_is_told_before_any_trial(change: dict[str, Any], words: str) -> None:
    protocol = replace(RECORD, data=replace(RECORD.data, **change))
    with pytest.raises(BenchError, match=re.escape(words)):
        tasks.open_task(protocol, "cpu").check()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"precision": "bf16"}, "precision=bf16"),
        ({"model": replace(RECORD.model, family="llama")}, "llama in a task of kind bilinear"),
        ({"model": replace(RECORD.model, source="pypi:x")}, "pypi:x in a task"),
    ],
)
def test_a_wrong_protocol_is_told_before_any_trial(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BenchError, match=re.escape(words)):
        tasks.open_task(replace(RECORD, **change), "cpu").check()


def test_too_few_rounds_and_no_local_steps_are_refused() -> None:
    with pytest.raises(BenchError, match=r"budget.steps=3 for 4 components"):
        begun("deflation_sequential", short(3))
    with pytest.raises(BenchError, match=r"local_steps=0"):
        begun("deflation_parallel", short(8), local_steps=0)


# --- the page -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shown() -> view.View:
    """The view of a run with real finals."""
    marks = {"protocol_digest": "p" * 64, "data_digest": "d" * 64, "run_id": "made up"}
    records = [
        replace(trained(name, "exp", seed), trial=seed, spec_digest=f"{place:064x}", **marks)
        for place, name in enumerate(METHODS)
        for seed in SEEDS
    ]
    fakes = {name: fake.Fake(loss=1.0, lr=0.5, default=0.5) for name in METHODS}
    protocol = {**fake.manifest()["protocol"], "reference": METHODS[2], "ranked": False}
    manifest = fake.manifest(fakes, protocol=protocol)
    return view.build(Run(Path("none"), manifest, tuple(records), ()))


def test_the_figure_shows_what_falls_and_what_is_frozen(shown: view.View) -> None:
    block = section.render(shown)
    assert block is not None
    (figure,), (table,) = block.figures, block.tables
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", figure.svg)
    for k in (2, 4, 6, 8):
        assert texts.count(f"component {k}") == 1
    for name in ("parallel", "parallel advance", "sequential", "sequential work"):
        assert texts.count(name) == 2  # at the end of each row
    assert texts.count("frozen") == 2  # both sequential ones, in the first panel alone
    assert "10⁻²" in texts
    assert "mathdefault" not in figure.svg
    for row in table.frame.to_dict("records"):
        runs = [trained(str(row["method"]), "exp", seed) for seed in SEEDS]
        assert row["finals"] == len(SEEDS)
        assert row["passes"] == pytest.approx(np.median([run.passes for run in runs]))
        for name in ("mismatch_2", "mismatch_4", "mismatch_6", "mismatch_8", "w_error"):
            wanted = np.median([series(run, name)[1][-1] for run in runs])
            assert row[name] == pytest.approx(wanted, rel=1e-12), name


def test_bands_hold_the_least_and_the_most(shown: view.View) -> None:
    method = next(m for m in shown.methods if m.name == METHODS[0])
    found = section.band(method, "mismatch_8")
    assert found is not None
    runs = np.stack([series(trained(METHODS[0], "exp", s), "mismatch_8")[1] for s in SEEDS])
    assert found.rounds == tuple(range(8, ROUNDS + 1))
    np.testing.assert_allclose(found.low, runs.min(axis=0))
    np.testing.assert_allclose(found.middle, np.median(runs, axis=0))
    np.testing.assert_allclose(found.high, runs.max(axis=0))


def test_no_section_where_nothing_deflates() -> None:
    assert section.render(view.build(fake.run(Path("none")))) is None


# --- the audit ----------------------------------------------------------------------------------


def test_the_audit_compares_batch_orders_where_there_are_no_tokens() -> None:
    fakes = {name: fake.FAKES[name] for name in ("adamw", "lion")}
    facts = {key: value for key, value in fake.manifest()["data"].items() if key != "tokens"}
    run = fake.run(Path("none"), fakes, data=facts)

    def outcome(*changed: tuple[int, str | None]) -> str:
        finals = [replace(r, batches_sha256="0") for r in run.records if r.phase == "final"]
        for place, digest in changed:
            finals[place] = replace(finals[place], batches_sha256=digest)
        (found,) = batches(Case(replace(run, records=tuple(finals))))
        return found.outcome

    assert outcome() == "fair"
    assert outcome((3, "1")) == "unfair"
    assert outcome((3, None)) == "unfair"
