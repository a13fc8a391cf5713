"""The laboratory: everything that measures, compares, draws and reports, on top of `llama_jax`.

bench        the instrument: guard, gate, protocol, statistics, records
peers        PyTorch, Flax, llama.cpp, Ollama and others on the same weights
activations  activations of chosen sites for a whole corpus
serve        an HTTP server over slots
figures      style and marks of the figures
playground   cells of a notebook that talk to a model
experiments  one folder per notebook
sharing      results of one machine, contributed and merged
reporting    pages, README and report
cli          the command `llama-jax`

`llama_lab.run(name, generator, prompts)` times a plain function beside placements: `bench.generators`.
"""

__all__ = ["run"]


def __getattr__(name: str):
    """Imported on first use."""
    if name == "run":
        from llama_lab.bench.generators import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
