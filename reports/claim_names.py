"""Which method of a run a claim speaks of, where the run gives it a size of its own.

A paper's LoRA has the ranks of the paper's protocol, so `lora(rank=2,alpha=16.0)` is LoRA in a run
that has no plain `lora`. A method with anything else changed, such as `foam(residual=false)`, is
an ablation and stands for itself alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from levelfield.reports.text import clean, listed
from levelfield.reports.view import View

if TYPE_CHECKING:
    from levelfield.reports.claims import Claim

SIZES = frozenset({"rank", "alpha", "budget", "cap"})
"""Hyper-parameters that say how much is trained, which every comparison sets for itself."""


def resolved(claim: Claim, view: View) -> Claim:
    """The claim with the run's own names; those that no method answers to stay as they are."""
    return replace(
        claim,
        methods=tuple(named(name, view) for name in claim.methods),
        against=named(claim.against, view),
    )


def stands_for(claim: Claim, view: View) -> str:
    """Which methods were taken for those of the claim, if not by their own names."""
    asked = (*claim.methods, claim.against)
    pairs = [(name, named(name, view)) for name in asked if name]
    return listed([f"{clean(own)} for {name}" for name, own in pairs if own != name])


def named(name: str, view: View) -> str:
    """The method of this name, or else the only one of it with another size."""
    names = [method.name for method in view.methods]
    sized = [other for other in names if _sized(other) == name]
    return name if name in names or len(sized) != 1 else sized[0]


def _sized(name: str) -> str:
    """The name without values in brackets, if these are all sizes."""
    base, bracket, inside = name.partition("(")
    if not bracket or not inside.endswith(")"):
        return name
    keys = {part.partition("=")[0].strip() for part in inside[:-1].split(",")}
    return base if keys <= SIZES else name
