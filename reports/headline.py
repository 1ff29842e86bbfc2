"""The answer in one sentence, and never more than the statistics carry."""

from __future__ import annotations

from levelfield.bench.inference import Comparison
from levelfield.reports.text import clean, fixed, listed, plural
from levelfield.reports.view import Method, View

START = (
    "about a hundred steps measure the start of training, where stateless methods lead; "
    "they show that everything works, not which method is better"
)


def headline(view: View) -> str:
    """What a reader came for."""
    if not any((m.tune, m.final, m.timing) != ((), (), ()) for m in view.methods):
        return "No trial has been recorded yet."
    if not view.ranked:
        return f"{plural(len(view.methods), 'method')} ran; this page ranks none of them."
    placed = view.contenders
    if not any(method.final or method.timing for method in view.methods):
        return _under_way(view)
    if not placed:
        return "No method can be ranked: " + _why_none(view) + "."
    if len(placed) == 1:
        return f"Only {_name(placed[0])} can be ranked, so there is nothing to compare."
    leaders = [method for method in placed if method.rank == 1]
    rest = [method for method in placed if method.rank != 1]
    if not rest:
        return f"{_names(leaders, 6)} cannot be told apart."
    if len(leaders) == 1:
        return _lead(view, leaders[0], rest) + _shared(rest[1:], placed) + "."
    return f"{_names(leaders, 6)} share first place: they cannot be told apart{_behind(rest)}."


def subline(view: View) -> str:
    """The same from the reference's side; empty where there is nothing to say."""
    reference = view.method(view.baseline)
    if not view.ranked:
        language = view.setting("task", "kind", default="causal_lm") == "causal_lm"
        return f"{START[0].upper()}{START[1:]}." if language else ""
    if reference is None or reference.rank is None:
        return ""
    won: list[Method] = []
    lost: list[Method] = []
    open_: list[Method] = []
    for method in view.contenders:
        pair = view.pair(method.name, reference.name)
        if method.name == reference.name or pair is None:
            continue
        winner = view.winner(method.name, reference.name)
        (open_ if winner is None else won if winner == method.name else lost).append(method)
    parts = [
        f"{_names(group, 5)} {words}"
        for group, words in (
            (won, f"{'is' if len(won) == 1 else 'are'} significantly better"),
            (open_, f"cannot be told apart from {_name(reference)}"),
            (lost, f"{'is' if len(lost) == 1 else 'are'} significantly worse"),
        )
        if group
    ]
    return f"Against {_name(reference)}: " + "; ".join(parts) + "." if parts else ""


def _lead(view: View, leader: Method, rest: list[Method]) -> str:
    pair = view.pair(rest[0].name, leader.name)
    behind = f"{_name(leader)} leads"
    if pair is None or pair.difference is None:
        return behind
    text = f"{behind} {_name(rest[0])} by {_gap(pair)} nats a token" + _survivors(leader)
    # Places count significant losses to anyone: the leader itself need not beat every other.
    open_ = [m for m in rest if not _beats(view, leader, m)]
    return text + (f", without being told apart from {_names(open_, 4)}" if open_ else "")


def _beats(view: View, a: Method, b: Method) -> bool:
    return view.winner(a.name, b.name) == a.name


def _gap(pair: Comparison) -> str:
    digits = 3 if abs(pair.difference or 0.0) >= 0.01 else 4
    middle = fixed(pair.difference or 0.0, digits)
    if pair.interval is None:
        return middle
    return f"{middle} ({fixed(pair.interval[0], digits)} to {fixed(pair.interval[1], digits)})"


def _survivors(method: Method) -> str:
    failed = len(method.final) - len(method.good)
    return f", on the {len(method.good)} of its {len(method.final)} seeds that ran" * (failed > 0)


def _shared(rest: list[Method], placed: tuple[Method, ...]) -> str:
    """Whoever shares the next place, if anyone does."""
    for rank in sorted({method.rank or 0 for method in placed if method.rank != 1}):
        group = [method for method in placed if method.rank == rank]
        if len(group) > 1:
            return f"; {_names(group, 4)} share place {rank}"
    return ""


def _behind(rest: list[Method]) -> str:
    first = [method for method in rest if method.rank == rest[0].rank]
    verb = "takes" if len(first) == 1 else "share"
    return f"; {_names(first, 4)} {verb} place {rest[0].rank}"


def _under_way(view: View) -> str:
    """Before the first final: how far the tuning is, or that it ended without a good trial."""
    done = sum(len(method.tune) for method in view.methods)
    each, studies = view.setting("budget", "trials"), view.setting("budget", "studies", default=1)
    planned = each * studies * len(view.methods) if isinstance(each, int) else done
    if done >= planned and all(method.best is None for method in view.methods):
        return "No method can be ranked: " + _why_none(view) + "."
    return f"Nothing is ranked yet: {done} of {planned} tuning trials are done."


def _why_none(view: View) -> str:
    reasons = [method.unranked for method in view.methods if method.unranked]
    if len(reasons) > 1 and len(set(reasons)) == 1:
        return clean(reasons[0])
    shown = [f"{_name(m)} ({m.unranked})" for m in view.methods[:3] if m.unranked]
    more = len(reasons) - len(shown)
    return clean(listed(shown)) + (f", and {more} more" if more > 0 else "")


def _names(methods: list[Method], most: int) -> str:
    names = [_name(method) for method in methods]
    if len(names) > most:
        names = [*names[: most - 1], f"{len(names) - most + 1} more"]
    return listed(names)


def _name(method: Method) -> str:
    return clean(method.name)
