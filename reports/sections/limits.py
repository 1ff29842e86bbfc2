"""What a run of this size can tell, and what it cannot."""

from __future__ import annotations

from levelfield.bench import stats
from levelfield.bench.spec import Section
from levelfield.reports import measure
from levelfield.reports.blocks import Block, Bullets, Part, Prose
from levelfield.reports.eligible import dig
from levelfield.reports.headline import START
from levelfield.reports.text import big, clean, fixed, short, significant
from levelfield.reports.view import View


def render(view: View) -> Block:
    """The protocol's own note, then what follows from its numbers."""
    parts: list[Part] = []
    note = clean(view.setting("note", default=""))
    if note:
        parts.append(Prose(note, "strong"))
    parts.append(Bullets(tuple(_sentences(view))))
    return Block(parts=tuple(parts))


def _sentences(view: View) -> list[str]:
    sizes = [s for m in view.methods if (s := measure.known(measure.parameters(m))) is not None]
    tokens, steps = measure.horizon_tokens(view), measure.horizon_steps(view)
    said = [] if view.ranked else [f"This protocol ranks nothing: {START}."]
    if sizes and tokens:
        said.append(_scale(max(sizes), tokens))
        said.append(_overhead(max(sizes)))
    if steps is not None:
        said.append(
            f"{short(steps)} steps: an average with beta 0.999 remembers 1000 of them, so slow "
            "averages, rare refreshes and late decay are "
            + ("hardly" if steps < 3000 else "partly")
            + " put to the test. The order can change with a longer horizon."
        )  # fmt: skip
    train = dig(view.manifest, "data", "tokens", "train")
    if tokens and stats.finite(train) and train > 0:
        said.append(_epochs(tokens / train))
    seeds, studies = view.manifest.get("final_seeds"), view.setting("budget", "studies", default=1)
    said.append(
        f"{short(seeds) if seeds else 'The'} final seeds a study show the luck of initial weights "
        "and of batch order. "
        + (
            "Nothing was tuned: at other hyper-parameters the order could be another one."
            if not view.tuned
            else "They say nothing about the luck of the tuning: another sequence of trials could "
            "end at other hyper-parameters, for every method."
            if studies < 2
            else f"{studies} tuning studies a method show the luck of the tuning as well, as far "
            "as so few can."
        )
    )
    said.append(
        "One data set, one architecture, one batch size, one schedule shape. A method that gains "
        "from large batches, long sequences or other shapes cannot show it here."
    )
    floor = dig(view.manifest, "data", "floor_loss_nats")
    if stats.finite(floor):
        said.append(
            f"The data has a known floor of {fixed(float(floor), 4)} nats a token: no model can do "
            "better, and what lies above it is what is left to learn."
        )
    return said


def _scale(parameters: float, tokens: float) -> str:
    ratio = tokens / parameters
    side = "far fewer than" if ratio < 5 else "fewer than" if ratio < 15 else "about"
    if ratio > 30:
        side = "more than"
    return (
        f"{big(parameters)} parameters on {big(tokens)} tokens: {significant(ratio, 2)} tokens a "
        f"parameter, {side} the 20 at which training is usually called compute-optimal. It orders "
        "methods for this regime."
    )


def _overhead(parameters: float) -> str:
    if parameters < 50e6:
        return (
            "At this size ratios of step time and of peak memory do not carry over to large "
            "models; bytes of state a parameter do."
        )
    return "Step time and peak hold for this device, batch and sequence length."


def _epochs(epochs: float) -> str:
    if epochs > 1:
        return (
            f"A trial reads as many tokens as {significant(epochs, 2)} times the training text: "
            "late losses also measure how well a method memorises."
        )
    return (
        f"A trial reads as many tokens as {significant(100 * epochs, 2)} % of the training text "
        "holds, so memorising hardly pays."
    )


SECTION = Section(
    name="limits",
    title="What this can and cannot tell",
    order=90,
    summary="what follows from the model's size, the horizon, the data and the seeds",
    render=render,
)
