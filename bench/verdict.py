"""Whether a trial that ran to its end learned: one rule for the loop and for the audit."""

from __future__ import annotations

from collections.abc import Sequence

from levelfield.bench.spec import Status


def verdict(
    curve: Sequence[Sequence[float]], train_loss: Sequence[Sequence[float]], scored: bool
) -> tuple[Status, str | None]:
    """Status and reason.

    Args:
        curve: of a record: [tokens, wall_s, held-out loss].
        train_loss: of a record: [step, mean training loss].
        scored: the task names a metric. Its held-out loss may rise while the score does not fall
            (confident mistakes on a small set), so the training loss decides.
    """
    if len(curve) == 1:
        return "ok", None  # a protocol of no steps: the model is read as it comes
    losses = [point[2] for point in curve]
    initial = losses[0]
    if scored:
        last = [point[1] for point in train_loss[-max(1, len(train_loss) // 10) :]]
        final = sum(last) / len(last)
        what = "final training loss"
        lowest = min(point[1] for point in train_loss)
        # A batch of few examples scatters; a head that has just been made is near its chance level.
        if final > max(1.2 * initial, lowest + 0.5):
            return "diverged", f"{what} {final:.3f} above 1.2 x the initial loss {initial:.3f}"
    else:
        final, what, lowest = losses[-1], "final loss", min(losses)
        if final > initial:
            return "diverged", f"{what} {final:.3f} above the initial {initial:.3f}"
        if final > lowest + 0.5:
            return "diverged", f"{what} {final:.3f} above its minimum {lowest:.3f} + 0.5"
    if final > 0.95 * initial:
        return "undertrained", f"{what} {final:.3f} above 0.95 x the initial {initial:.3f}"
    return "ok", None
