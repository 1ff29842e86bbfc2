"""levelfield: the level playing field for LLM optimizers.

    import levelfield

    if __name__ == "__main__":  # needed in a script: every trial runs in a process of its own
        run = levelfield.run("smoke", ["adamw", "lion"])
        print(run.path)
        same = levelfield.load(run.path)

The command `levelfield` does the same. Importing this module is cheap: `run` and `load` bring the
engine when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from levelfield.bench.api import load, run

    __version__: str

__all__ = ["__version__", "load", "run"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = _version() if name == "__version__" else _from_api(name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("levelfield")
    except PackageNotFoundError:  # a checkout on the path, never installed
        return "0+unknown"


def _from_api(name: str) -> Any:
    from levelfield.bench import api

    return _run_with_page if name == "run" else getattr(api, name)


def _run_with_page(*args: Any, **kwargs: Any) -> Any:
    """`levelfield.bench.api.run`, and the page beside the records."""
    from levelfield.bench import api
    from levelfield.reports import page

    done = api.run(*args, **kwargs)
    page.write(done)
    return done
