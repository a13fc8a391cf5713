"""`python -m llama_jax`: the command that this distribution installs, `llama-jax`."""

import sys
from importlib.metadata import entry_points


def main() -> None:
    commands = entry_points(group="console_scripts", name="llama-jax")
    if not commands:
        print("error: the command llama-jax is not installed; run `make setup`.", file=sys.stderr)
        sys.exit(2)
    next(iter(commands)).load()()


if __name__ == "__main__":
    main()
