"""What `levelfield check` prints: a line a check, but every problem once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from levelfield.bench.check import Check, Outcome


class Lines:
    """Turns checks into lines as they come.

    A method that does not build fails every check for one reason: the first line tells it, and the
    end names the other checks.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[Outcome, str], list[str]] = {}
        self._count: dict[Outcome, int] = {"passed": 0, "failed": 0, "unsupported": 0}

    def told(self, item: Check) -> str | None:
        """The line of a check; None for a problem that has its line."""
        self._count[item.outcome] += 1
        if item.outcome != "passed":
            names = self._names.setdefault((item.outcome, item.reason), [])
            names.append(item.name)
            if len(names) > 1:
                return None
        return _line(item.outcome, item.name, item.reason)

    def rest(self) -> list[str]:
        """The checks that have no line of their own, one line a problem."""
        return [
            _line(outcome, first, f"the same: {', '.join(others)}")
            for (outcome, _), (first, *others) in self._names.items()
            if others
        ]

    def summary(self, method: str, wall_s: float) -> str:
        """How many checks hold, in how many seconds."""
        words = {"passed": "hold", "failed": "failed", "unsupported": "do not apply"}
        counts = [
            f"{count} {words[outcome]}"
            for outcome, count in self._count.items()
            if count or outcome == "passed"
        ]
        whole = sum(self._count.values())
        return f"{method}: of {whole} checks {', '.join(counts)}; {wall_s:.1f} s"


def _line(outcome: str, name: str, reason: str) -> str:
    return f"{outcome:<12}{name:<16}{reason}"
