"""Numbers as a reader wants them: few digits, a unit, never a made-up zero."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

DASH = "–"
MINUS = "−"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def clean(text: object) -> str:
    """Text from a record or a plug-in, without what neither HTML nor SVG may carry."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(text))


def fixed(value: float, digits: int) -> str:
    """Decimal notation with a real minus sign; words for what is not finite."""
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "∞" if value > 0 else MINUS + "∞"
    text = f"{value:.{digits}f}"
    if float(text) == 0:
        text = f"{0:.{digits}f}"
    return text.replace("-", MINUS)


def signed(value: float, digits: int) -> str:
    """Decimal notation that always shows its sign, except for zero."""
    return with_sign(fixed(value, digits))


def with_sign(number: str) -> str:
    """A written number that shows its sign, unless it is a zero."""
    return number if number.startswith(MINUS) or float(number) == 0 else "+" + number


def short(value: object) -> str:
    """A hyper-parameter or any scalar: four significant digits, plain where that stays short."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return significant(value)
    if isinstance(value, list | tuple):
        return "(" + ", ".join(short(item) for item in value) + ")"
    return clean(value)


def exact(value: object) -> str:
    """A hyper-parameter in full, to type it in again: floats as Python writes them."""
    if isinstance(value, list | tuple):
        return "(" + ", ".join(map(exact, value)) + ")"
    return repr(value) if isinstance(value, float) else clean(value)


def shortened(text: str, digits: int = 4) -> str:
    """The text of a float with fewer digits; any other text as it is."""
    try:
        value = float(text)
    except ValueError:
        return text
    return text if "." not in text and "e" not in text else significant(value, digits)


def significant(value: float, digits: int = 4) -> str:
    """`digits` significant digits, trailing zeros dropped: 0.003162, 3.2e-08, 12000."""
    if not math.isfinite(value):
        return fixed(value, 0)
    text = f"{value:.{digits}g}"
    if "e" in text:
        mantissa, _, exponent = text.partition("e")
        if 0 <= int(exponent) < 9:
            text = f"{value:.0f}"
        else:
            text = f"{mantissa}e{int(exponent)}"
    return text.replace("-", MINUS)


def count(value: float) -> str:
    """A whole number with thin spaces between thousands."""
    return f"{round(value):,}".replace(",", "\N{NARROW NO-BREAK SPACE}").replace("-", MINUS)


def big(value: float) -> str:
    """A large count in words of three digits: 819 k, 1.6 M, 2.1 B."""
    for factor, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{significant(value / factor, 3)} {unit}"
    return significant(value, 3)


BINARY = (("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0))


def binary_unit(values: Iterable[float]) -> tuple[str, int]:
    """One binary unit for a whole column: (name, exponent of two) fit for its median."""
    known = sorted(value for value in values if value > 0)
    middle = known[len(known) // 2] if known else 0.0
    for name, exponent in BINARY:
        if middle >= 2**exponent:
            return name, exponent
    return "B", 0


def bytes_text(value: float) -> str:
    """Bytes in their binary unit."""
    name, exponent = binary_unit([value])
    return f"{significant(value / 2**exponent, 3)} {name}"


_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def unit_note(exponent: int) -> str:
    """2 to the power, as text: 2²⁰ bytes."""
    return "bytes" if exponent == 0 else "2" + str(exponent).translate(_SUPERSCRIPT) + " bytes"


def seconds(value: float) -> str:
    """A duration: µs, ms, s, min or h."""
    if value < 1e-3:
        return f"{significant(value * 1e6, 3)} µs"
    if value < 1:
        return f"{significant(value * 1e3, 3)} ms"
    if value < 120:
        return f"{significant(value, 3)} s"
    if value < 7200:
        return f"{significant(value / 60, 3)} min"
    return f"{significant(value / 3600, 3)} h"


def listed(items: Iterable[str]) -> str:
    """a, b and c."""
    names = list(items)
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def plural(number: int, noun: str, many: str | None = None) -> str:
    """1 trial, 2 trials."""
    return f"{number} {noun if number == 1 else many or noun + 's'}"


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
