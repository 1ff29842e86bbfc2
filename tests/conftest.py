"""The same surroundings for every test: one thread, no network, a home folder of its own.

The environment is set on import, before any test module brings torch, and is inherited by the
workers of xdist and by every process that a test starts.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# One thread: sums are taken in one order, and two workers do not fight over two cores. Passive: a
# thread that waits must not spin on a core that another process needs.
os.environ.update(
    OMP_NUM_THREADS="1",
    MKL_NUM_THREADS="1",
    OPENBLAS_NUM_THREADS="1",
    OMP_WAIT_POLICY="PASSIVE",
    TOKENIZERS_PARALLELISM="false",
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    MPLBACKEND="agg",
    NO_COLOR="1",
    COLUMNS="100",
)
for name in ("HF_HOME", "HF_HUB_CACHE", "FORCE_COLOR"):
    os.environ.pop(name, None)

# A shell starts what it puts into the background deaf to Ctrl-C, and so would be what tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_HOME = "LEVELFIELD_TESTS_HOME"
_made: Path | None = None
if _HOME not in os.environ:  # the first process; the workers of xdist share its folder
    _made = Path(tempfile.mkdtemp(prefix="levelfield-tests-"))
    os.environ[_HOME] = str(_made)
    os.environ.update(
        HOME=str(_made),
        XDG_CACHE_HOME=str(_made / "cache"),
        XDG_CONFIG_HOME=str(_made / "config"),
        MPLCONFIGDIR=str(_made / "matplotlib"),
    )


def pytest_report_header() -> str:
    from levelfield.tests import local_data

    return local_data.status()


def pytest_unconfigure() -> None:
    if _made is not None:
        shutil.rmtree(_made, ignore_errors=True)


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return Path(__file__).parent.parent


@pytest.fixture
def start(tmp_path: Path, root: Path) -> Iterator[Callable[..., object]]:
    """Starts runs in processes of their own: a `Coordinator` each."""
    from levelfield.tests.coordinator import starting

    yield from starting(tmp_path, root)


@pytest.fixture(autouse=True)
def _uncompiled(request: pytest.FixtureRequest) -> Iterator[None]:
    """Methods that compile their step run it eagerly: the first compiled step takes a minute, so
    only `slow` tests compile. The numbers are the same up to rounding."""
    torch = sys.modules.get("torch")
    if torch is None or request.node.get_closest_marker("slow") is not None:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
