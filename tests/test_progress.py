"""What is told on stderr while a run is under way."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest

from levelfield.bench.progress import LiveProgress, PlainProgress, outcome
from levelfield.bench.spec import Task
from levelfield.bench.train_request import Progress, failed_record
from levelfield.reports import units
from levelfield.tests import small

NATS = small.PROTOCOL
POINTS = replace(NATS, task=Task(kind="classification", metric="accuracy"))
MATRIX = replace(NATS, task=Task(kind="bilinear"))


def told(progress: PlainProgress, protocol: object) -> None:
    request = replace(small.request("adamw"), protocol=protocol)  # type: ignore[arg-type]
    record = replace(failed_record(request, "ok", ""), reason=None, selection_loss=43.75)
    progress.phase("tune", 2, 0)
    progress.started(request)
    progress.finished(record, fresh=True)


@pytest.mark.parametrize(
    ("protocol", "word"),
    [(NATS, "loss"), (POINTS, "error"), (MATRIX, "loss")],
    ids=["nats", "points", "matrix"],
)
def test_a_trial_is_told_in_the_word_that_its_page_uses(protocol: object, word: str) -> None:
    stream = io.StringIO()
    told(PlainProgress(1, stream), protocol)
    line = stream.getvalue().splitlines()[-1]
    assert f"  {word} 43.7500  (" in line
    assert line.count("loss") == (word == "loss")
    task = protocol.task  # type: ignore[attr-defined]
    seen = SimpleNamespace(setting=lambda *keys, default=None: getattr(task, keys[-1]))
    assert units.in_unit(seen, "loss") == word  # type: ignore[arg-type]


def test_a_running_trial_tells_its_training_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is in nats whatever the trial is judged by, so it keeps its name."""
    from rich.console import Console

    live = LiveProgress(1)
    stream = io.StringIO()
    request = replace(small.request("adamw"), protocol=POINTS)
    live.started(request)
    live.progress(Progress(key=request.key, step=1, steps=4, loss=0.6931, tokens_per_s=1.0))
    Console(file=stream, width=200).print(live._live.renderable)
    assert "training loss 0.6931" in stream.getvalue()
    monkeypatch.setattr(live, "_say", lambda text: stream.write(text))
    live.finished(
        replace(failed_record(request, "ok", ""), reason=None, selection_loss=50.0), fresh=True
    )
    assert "error 50.0000" in stream.getvalue()


def test_a_failure_tells_its_reason_and_a_timing_its_milliseconds() -> None:
    request = small.request("adamw")
    assert outcome(failed_record(request, "oom", "no room")).endswith("  oom: no room")
    timed = replace(failed_record(request, "ok", ""), phase="timing", wall_s={"windows": [0.0125]})
    assert "12.50 ms a step" in outcome(timed)
