"""What a run is made of: its methods, its manifest, and the checks that need no training."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from levelfield.bench import provenance
from levelfield.bench.digest import (
    did_you_mean,
    from_plain,
    protocol_digest,
    sha256,
    source_digest,
    to_plain,
)
from levelfield.bench.fitting import check_sizes
from levelfield.bench.reference import load_spec
from levelfield.bench.registry import OPTIMIZERS, Loaded, lacking
from levelfield.bench.schedules import check_schedule
from levelfield.bench.spec import (
    ENGINE_VERSION,
    SCHEMA,
    BenchError,
    OptimizerSpec,
)
from levelfield.bench.spec import Protocol as ProtocolRecord
from levelfield.bench.store import RECORDS, RunWriter, chain_breaks, load_run

SEED_STRIDE, STUDY_STRIDE = 10_000, 100
"""Run seed s, study r: tuning uses 10000 s + 100 r, its finals that + 1, + 2, ...: all disjoint."""
MAX_STUDIES, MAX_FINALS = 50, 99
SWEEP_OFFSET = 9_000
"""The sweep's seeds are 10000 s + 9000, + 1, ..."""
UNPAIRED, UNPAIRED_STRIDE = 10**12, 10**8
"""Finals that no other method shares have seeds of their own beyond 10^12."""
MOST_SEEDS = 10**9
"""Run seeds lie below this, so that no range of seeds reaches another."""


def tune_seed(seed: int, study: int) -> int:
    """The one seed of all tuning trials of a study."""
    return seed * SEED_STRIDE + study * STUDY_STRIDE


def final_seed(seed: int, study: int, index: int) -> int:
    """Seed of a final trial, the same for all methods."""
    return tune_seed(seed, study) + 1 + index


def unpaired_seed(seed: int, method: int, study: int, index: int) -> int:
    """Seed of a final trial that no other method shares (the A/A control)."""
    place = method * SEED_STRIDE + study * STUDY_STRIDE + 1 + index
    return UNPAIRED + seed * UNPAIRED_STRIDE + place


def final_number(study: int, index: int) -> int:
    """Number of a final trial: it stays what it is when finals are added later."""
    return study * STUDY_STRIDE + index


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a run: its record, where it came from, its digest."""

    spec: OptimizerSpec
    origin: str
    reference: str
    """What a trial's process loads it by."""
    digest: str
    label: str = ""
    """Tells apart two entries of one method in one run (`adamw@again`), for controls."""

    @property
    def name(self) -> str:
        return f"{self.spec.name}@{self.label}" if self.label else self.spec.name


def load_method(reference: str) -> Method:
    """Load a method and make sure that it can run here.

    Raises:
        BenchError: unknown, broken, or lacking a library.
    """
    reference, label = split_label(reference)
    loaded: Loaded[OptimizerSpec] = load_spec(reference)
    spec = loaded.value
    missing = lacking(spec.requires)
    if missing:
        raise BenchError(
            f"{spec.name} needs {', '.join(missing)}, which is not installed",
            "install the extra that carries it",
        )
    if loaded.parts:  # values of the user's own
        from levelfield.bench.build import try_out

        try_out(spec)
    origin, reference = loaded.entry.origin, loaded.entry.reference
    return Method(spec, origin, reference, method_digest(loaded), label)


def split_label(reference: str) -> tuple[str, str]:
    """`adamw@again` as name and label; an `@` inside a path is none."""
    name, at, label = reference.rpartition("@")
    if at and name and label.replace("_", "").replace("-", "").isalnum():
        return name, label
    return reference, ""


def method_digest(loaded: Loaded[OptimizerSpec]) -> str:
    """Digest of a method's code and of the library that it borrows from; of a mix, of its parts."""
    if loaded.parts:
        return sha256([loaded.entry.reference, *(method_digest(part) for part in loaded.parts)])
    if loaded.value.inner is not None:
        inner = replace(loaded, value=replace(loaded.value, inner=None))
        return sha256([method_digest(inner), method_digest(load_spec(loaded.value.inner))])
    library = (loaded.value.implementation.split() or ["own"])[0]
    return source_digest(loaded.path, [] if library == "own" else [library])


def load_methods(references: Sequence[str]) -> tuple[Method, ...]:
    """Load several; a name twice is an error that names both origins."""
    found: dict[str, Method] = {}
    for reference in references:
        method = load_method(reference)
        other = found.setdefault(method.name, method)
        if other is not method:
            raise BenchError(
                f"two methods are named {method.name!r}: {other.origin} and {method.origin}",
                "name each method once",
            )
    return tuple(found.values())


def method_data(method: Method) -> dict[str, Any]:
    """A method as the manifest holds it."""
    spec = method.spec
    kept = (
        *("family", "summary", "paper", "code", "licence", "version", "scale", "fixed", "roles"),
        *("passes", "schedule", "refreshes", "parent", "implementation", "requires", "cannot"),
        *("inner", "tasks"),
    )
    return {
        "name": method.name,
        "origin": method.origin,
        "reference": method.reference + (f"@{method.label}" if method.label else ""),
        "digest": method.digest,
        "spec": {
            **{name: to_plain(getattr(spec, name)) for name in kept},
            "space": {name: dim.to_json() for name, dim in spec.space.items()},
        },
    }


# --- creating and reopening -------------------------------------------------------------------


def new_run(
    protocol: ProtocolRecord,
    methods: Sequence[Method],
    *,
    out: Path,
    seed: int,
    final_seeds: int,
    slots: int,
    device: str,
    modified: Sequence[str] = (),
    origin: str = "",
    folder: Path | None = None,
    transfer: Mapping[str, Any] | None = None,
) -> RunWriter:
    """Make the folder of a new run, after every check that needs no training.

    Args:
        folder: of the run, if not one with a fresh name under `out`.
        transfer: hyper-parameters of another run, as `transfer_from` gives them.

    Raises:
        BenchError: a protocol that cannot work, or a folder that cannot be made.
    """
    check_schedule(protocol)
    check_budget(protocol, final_seeds)
    check_roles(protocol, methods)
    check_sizes(protocol)
    corpus_facts = _corpus_facts(protocol)
    check_adapters(protocol, methods)
    created = datetime.now(UTC)
    tag = sha256([protocol.name, created.isoformat(), os.getpid()])[:6]
    run_id = f"{created:%Y%m%dT%H%M%SZ}-{protocol.name}-{tag}"
    manifest = {
        "schema": SCHEMA,
        "run_id": run_id,
        "created_utc": created.isoformat(timespec="seconds"),
        "command": provenance.command(),
        "levelfield_version": provenance.levelfield_version(),
        "engine_version": ENGINE_VERSION,
        "seed": seed,
        "final_seeds": final_seeds,
        "modified": list(modified),
        "protocol": protocol,
        "protocol_origin": origin,
        "protocol_digest": protocol_digest(protocol),
        "methods": [method_data(method) for method in methods],
        "horizons": {},
        "sizes": {},
        "studies": {},
        "freeze": None,
        "transfer": transfer,
        "timing_batches": [[method.name for method in methods]],
        "data": corpus_facts,
        "environment": environment_of(device),
        "sessions": [],
        "device": device,
        "slots": slots,
        "interruptions": [],
        "warnings": [],
    }
    return RunWriter.create(folder or out / run_id, manifest)


def transfer_from(path: Path, methods: Sequence[Method]) -> dict[str, Any]:
    """The best points of another run, for finals that are not tuned again.

    Raises:
        BenchError: no such run, one without a finished tuning, none of these methods in it, or a
            method whose code changed since.
    """
    run = load_run(path)
    digests = {item["name"]: item["digest"] for item in run.manifest["methods"]}
    changed = [m.name for m in methods if digests.get(m.name, m.digest) != m.digest]
    if changed:
        raise BenchError(f"the code of {', '.join(changed)} changed since {path} was run")
    tuned = {(r.optimizer, r.study, r.trial): r for r in run.records if r.phase == "tune"}
    found = {}
    for key, facts in (run.manifest.get("studies") or {}).items():
        name, _, index = key.rpartition("#")
        record = tuned.get((name, int(index), facts["best_trial"]))
        if record is not None and name in {method.name for method in methods}:
            found[key] = dict(record.hparams)
    if not found:
        raise BenchError(
            f"{path} holds no tuned point of {', '.join(method.name for method in methods)}",
            "accepted: a run that finished tuning some of these methods",
        )
    return {
        "run_id": run.manifest["run_id"],
        "protocol": run.manifest["protocol"]["name"],
        "hparams": found,
    }


def _corpus_facts(protocol: ProtocolRecord) -> dict[str, Any]:
    from levelfield.bench import tasks

    task = tasks.open_task(protocol, "cpu")
    task.check()  # too little data is found now, not in the first trial
    return dict(task.facts)


def check_budget(protocol: ProtocolRecord, final_seeds: int) -> None:
    """Refuse budgets that mean nothing.

    Raises:
        BenchError: a count below one, or more finals than seeds.
    """
    _check_no_steps(protocol)
    counts = {
        "budget.steps": protocol.budget.steps or 1,
        "budget.trials": protocol.budget.trials,
        "budget.studies": protocol.budget.studies,
        "the number of final seeds": final_seeds,
        "data.batch": protocol.data.batch,
        "data.sequence": protocol.data.sequence,
        "evaluation.every": protocol.evaluation.every,
        "evaluation.sequences": protocol.evaluation.sequences,
        "evaluation.most": protocol.evaluation.most or 1,
        "timing.windows": protocol.timing.windows,
        "timing.steps": protocol.timing.steps,
        "tuner.generation": protocol.tuner.generation,
        "threads": protocol.threads,
        "engine.accumulation": protocol.engine.accumulation,
        "engine.processes": protocol.engine.processes,
        "schedule.cycles": protocol.schedule.cycles,
        "model.hidden": protocol.model.hidden,
        "model.layers": protocol.model.layers,
        "model.heads": protocol.model.heads,
    }
    for name, count in counts.items():
        if count < 1:
            raise BenchError(f"{name} = {count}", "accepted: 1 or more")
    if protocol.budget.trial_timeout_s <= 0:
        raise BenchError(f"budget.trial_timeout_s = {protocol.budget.trial_timeout_s}", "> 0")
    budget = protocol.budget
    if final_seeds > MAX_FINALS or budget.studies > MAX_STUDIES:
        raise BenchError(
            f"{final_seeds} final seeds and {budget.studies} studies",
            f"accepted: at most {MAX_FINALS} and {MAX_STUDIES}",
        )
    if not 0 <= protocol.tuner.reserve < budget.trials:
        raise BenchError(
            f"tuner.reserve = {protocol.tuner.reserve} of {budget.trials} trials",
            "accepted: 0 or more, and fewer than budget.trials",
        )
    if budget.sweep < 0 or budget.sweep_seeds < 1:
        raise BenchError(
            f"a sweep of {budget.sweep} rates x {budget.sweep_seeds} seeds",
            "accepted: budget.sweep of 0 or more, budget.sweep_seeds of 1 or more",
        )
    if (budget.amount is None) != (budget.unit == "steps"):
        raise BenchError(
            f"budget.unit={budget.unit} with budget.amount={budget.amount}",
            "an amount goes with any unit but steps, for which budget.steps is the budget",
        )
    if budget.amount is not None and budget.amount <= 0:
        raise BenchError(f"budget.amount = {budget.amount:g}", "accepted: a number above 0")
    _check_numbers(protocol)
    if not 0 < protocol.alpha < 1 or protocol.margin_nats <= 0:
        raise BenchError(
            f"alpha={protocol.alpha:g}, margin_nats={protocol.margin_nats:g}",
            "accepted: 0 < alpha < 1 and a margin above 0",
        )


def check_adapters(protocol: ProtocolRecord, methods: Sequence[Method]) -> None:
    """Refuse adapters that do not go with the model, or with the method under them: found now, and
    not by the first trial.

    Raises:
        BenchError: targets that match nothing, a budget below one rank a module, ...
    """
    adapters = [method.spec for method in methods if method.spec.adapter is not None]
    if not adapters:
        return
    from levelfield.bench import models
    from levelfield.bench.build import adapted_shape, build_stepper, trained_by
    from levelfield.bench.errors import named

    for spec in adapters:
        if spec.tasks and protocol.task.kind not in spec.tasks:
            continue  # told by its trials
        trained_by(spec)
        try:
            model = adapted_shape(spec, protocol)
            params = models.parameters(model)
            build_stepper(spec, protocol, model, params, spec.defaults(), 0)
        except BenchError:
            raise
        except Exception as error:
            raise BenchError(
                f"{spec.name} does not go with the model: {named(error)}",
                "accepted: values that the method can take",
            ) from error


def _check_no_steps(protocol: ProtocolRecord) -> None:
    """A protocol of no steps reads a model as it comes: nothing can be tuned.

    Raises:
        BenchError: anything to tune, or a model that has learned nothing.
    """
    budget = protocol.budget
    if budget.steps:
        return
    if budget.trials != 1 or budget.sweep or protocol.tuner.reserve:
        raise BenchError(
            "budget.steps = 0 leaves nothing to tune",
            "accepted: 1 or more; or budget.trials=1, budget.sweep=0, tuner.reserve=0",
        )
    if not protocol.model.source:
        raise BenchError(
            "budget.steps = 0 reads a model as it comes, and none is named",
            "accepted: --model FOLDER, or --from RUN:method:seed",
        )


def check_roles(protocol: ProtocolRecord, methods: Sequence[Method]) -> None:
    """Refuse a reference or baseline that no method is named by: a slip would lose every ratio.

    Raises:
        BenchError: neither in this run nor known.
    """
    known = {*OPTIMIZERS.entries(), *(method.name for method in methods)}
    for field in ("reference", "claims"):
        name = getattr(protocol, field)
        if name and split_label(name)[0] not in known and name not in known:
            raise BenchError(f"{field} = {name!r} is no method", did_you_mean(name, known))


def _check_numbers(protocol: ProtocolRecord) -> None:
    """Refuse numbers that would only fail once training is under way."""
    tuner, model, fallback = protocol.tuner, protocol.model, protocol.fallback
    engine = protocol.engine
    sharing = 1 if engine.parallel == "components" else engine.processes
    wrong = {
        "tuner.factor": (tuner.factor, 1 < tuner.factor <= 1000, "above 1, up to 1000"),
        "tuner.decades": (tuner.decades, 0 < tuner.decades <= 6, "above 0, up to 6"),
        "tuner.start": (tuner.start, 1e-6 <= tuner.start <= 1e6, "a millionth to a million"),
        "threads": (protocol.threads, protocol.threads <= 1024, "1 to 1024"),
        "budget.steps": (protocol.budget.steps, protocol.budget.steps <= 10**9, "up to 10^9"),
        "fallback.eps": (fallback.eps, fallback.eps >= 0, "0 or more"),
        "model.intermediate": (model.intermediate, model.intermediate > 0, "1 or more"),
        "model.dropout": (model.dropout, 0 <= model.dropout < 1, "0 to below 1"),
        "model.heads": (
            model.heads,
            model.head_dim is not None
            or (model.hidden % model.heads == 0 and model.hidden // model.heads % 2 == 0),
            f"a divisor of model.hidden={model.hidden} that leaves heads of even size",
        ),
        "engine.accumulation": (
            engine.accumulation,
            protocol.data.batch % (engine.accumulation * sharing) == 0,
            f"with engine.processes={engine.processes}, parts that data.batch="
            f"{protocol.data.batch} can be cut into",
        ),
        "engine.checkpoint_tokens": (
            engine.checkpoint_tokens,
            engine.checkpoint_tokens is None or engine.checkpoint_tokens > 0,
            "above 0, or none",
        ),
        "clip_norm": (
            protocol.clip_norm,
            protocol.clip_norm is None or protocol.clip_norm > 0,
            "above 0, or none",
        ),
        "fallback.lr": (fallback.lr, fallback.lr > 0, "above 0"),
        "fallback.beta1": (fallback.beta1, 0 <= fallback.beta1 < 1, "0 to below 1"),
        "fallback.beta2": (fallback.beta2, 0 <= fallback.beta2 < 1, "0 to below 1"),
    }
    for name, (given, good, accepted) in wrong.items():
        if not good:
            raise BenchError(f"{name} = {given}", f"accepted: {accepted}")


def reopen(folder: Path) -> tuple[RunWriter, dict[str, Any]]:
    """An existing run for writing, and its manifest."""
    run = load_run(folder)
    needed = (
        *("run_id", "protocol", "methods", "data", "seed", "final_seeds", "protocol_digest"),
        *("device", "slots", "timing_batches", "interruptions"),
    )
    missing = [key for key in needed if run.manifest.get(key) is None]
    if missing:
        raise BenchError(
            f"{folder}: its manifest lacks {', '.join(missing)}", "restore it, or start a new run"
        )
    return RunWriter(folder), dict(run.manifest)


def manifest_protocol(manifest: Mapping[str, Any]) -> ProtocolRecord:
    """The protocol that a manifest holds."""
    return from_plain(ProtocolRecord, manifest["protocol"])


def current_methods(manifest: Mapping[str, Any], rerun_stale: bool) -> tuple[Method, ...]:
    """The manifest's methods as they are today.

    Raises:
        BenchError: a method's code changed since, unless `rerun_stale`.
    """
    methods = load_methods([item["reference"] for item in manifest["methods"]])
    then = {item["name"]: item["digest"] for item in manifest["methods"]}
    stale = [method.name for method in methods if then.get(method.name) != method.digest]
    if stale and not rerun_stale:
        raise BenchError(
            f"the code of {', '.join(stale)} changed since this run began",
            "--resume with --rerun-stale trains them again and keeps the old lines",
        )
    return methods


def check_fresh(manifest: Mapping[str, Any], protocol: ProtocolRecord) -> None:
    """Refuse to continue a run whose engine, protocol or data are not what they were."""
    if manifest["protocol_digest"] != protocol_digest(protocol):
        raise BenchError(
            "this run was made by another version of the training loop or of the protocol",
            "start a new run",
        )
    if manifest["data"]["digest"] != _corpus_facts(protocol)["digest"]:
        raise BenchError("the data is not what it was when this run began", "start a new run")


def with_methods(
    writer: RunWriter, manifest: dict[str, Any], added: Sequence[Method], final_seeds: int | None
) -> None:
    """Write new methods and a new number of finals into a run's manifest.

    Raises:
        BenchError: a method that is there already, or fewer finals than there are.
    """
    known = [item["name"] for item in manifest["methods"]]
    twice = [method.name for method in added if method.name in known]
    if twice:
        raise BenchError(f"{', '.join(twice)} is already in this run", "--seeds adds finals to it")
    if final_seeds is not None and final_seeds < manifest["final_seeds"]:
        raise BenchError(
            f"--seeds {final_seeds}, and this run has {manifest['final_seeds']}",
            "give the number of final seeds in all",
        )
    batches = list(manifest["timing_batches"])
    if added:
        reference = manifest["protocol"]["reference"]
        batches.append([name for name in known if name == reference] + [m.name for m in added])
    writer.update_manifest(
        methods=[*manifest["methods"], *(method_data(method) for method in added)],
        final_seeds=manifest["final_seeds"] if final_seeds is None else final_seeds,
        timing_batches=batches,
    )


def open_session(writer: RunWriter, device: str) -> None:
    """Note with what a run is made or continued: a resume may happen under other versions."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    here = {"utc": now, "command": provenance.command(), "environment": environment_of(device)}
    sessions = list(writer.manifest.get("sessions") or [])
    writer.update_manifest(sessions=[*sessions, here])


def environment_of(device: str) -> dict[str, Any]:
    """Versions and machine; for a GPU its name and driver as well."""
    found = provenance.environment(device)
    if device.startswith("cuda"):
        from levelfield.bench import nvml

        driver = nvml.driver()
        found |= {"driver": driver["driver"], "gpus": driver["devices"]}
    return found


def check_untouched(writer: RunWriter, manifest: Mapping[str, Any]) -> None:
    """Refuse to go on with records that were edited: going on would write over the evidence.

    Raises:
        BenchError: a line that does not follow from the one before, or an end that is not the one
            that the run was sealed with.
    """
    path = writer.path / RECORDS
    broken = list(chain_breaks(path)) if path.is_file() else []
    sealed = manifest.get("sealed") or {}
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    count = sealed.get("records") or 0
    if 0 < count <= len(lines) and sha256(lines[count - 1]) != sealed.get("tail_sha256"):
        broken.append(f"line {count} is not the one that the run ended with")
    if broken:
        raise BenchError(
            f"{path} was changed after it was written: {broken[0]}",
            "restore the file; `levelfield audit` tells what is wrong with it",
        )


def seal(writer: RunWriter) -> None:
    """Write the digest of the last line into the manifest: the chain alone does not cover it."""
    if (writer.manifest.get("sealed") or {}).get("records") == len(writer.records):
        return
    writer.update_manifest(sealed={"records": len(writer.records), "tail_sha256": writer.tail})


def refresh_methods(writer: RunWriter, methods: Sequence[Method]) -> None:
    """Write today's digests of the methods into the manifest: older records become stale."""
    then = {item["name"]: item["digest"] for item in writer.manifest["methods"]}
    stale = [method.name for method in methods if then[method.name] != method.digest]
    batches = writer.manifest["timing_batches"]
    if stale:
        # Timed anew beside the reference; if that one changed, beside it everything is.
        reference = writer.manifest["protocol"]["reference"]
        again = [m.name for m in methods if m.name in (*stale, reference) or reference in stale]
        gone = again if reference in stale else stale
        left = [[name for name in names if name not in gone] for names in batches]
        batches = [*left, again]
    # What a step costs was measured on the old code.
    horizons = {n: h for n, h in (writer.manifest.get("horizons") or {}).items() if n not in stale}
    sizes = {n: s for n, s in (writer.manifest.get("sizes") or {}).items() if n not in stale}
    writer.update_manifest(
        methods=[method_data(method) for method in methods],
        timing_batches=batches,
        horizons=horizons,
        sizes=sizes,
    )
