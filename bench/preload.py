"""What the fork server holds ready for every trial; see `execute.PRELOAD`."""

from levelfield.bench.quiet import quiet_imports

with quiet_imports():
    import transformers.models.llama.modeling_llama  # noqa: F401
