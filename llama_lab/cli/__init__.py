"""The verbs of `llama-jax`, grouped into modules. Heavy imports wait until a verb runs, so that `--help` is quick. A
GPU machine that only runs `bench --suite gpu` does not need the other verbs' dependencies.
"""

import importlib

MODULES = ("text", "scoring", "measure", "notebooks", "extract", "sharing", "listing")  # in the order of `--help`


def program():
    """The typer program, with all verbs."""
    for name in MODULES:
        importlib.import_module(f"llama_lab.cli.{name}")
    return importlib.import_module("llama_lab.cli.common").app
