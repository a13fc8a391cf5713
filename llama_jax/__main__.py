"""`python -m llama_jax`: the command that this distribution installs, `llama-jax`."""

import sys
from importlib.metadata import entry_points


def main() -> None:
    commands = entry_points(group="console_scripts", name="llama-jax")
    if not commands:
        sys.exit("error: the command llama-jax is not installed; run `make setup`, or `pip install -e .` in a clone.")
    next(iter(commands)).load()()


if __name__ == "__main__":
    main()
