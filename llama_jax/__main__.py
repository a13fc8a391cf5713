"""`python -m llama_jax`: the command that this distribution installs, `llama-jax`."""

from importlib.metadata import entry_points


def main() -> None:
    (command,) = entry_points(group="console_scripts", name="llama-jax")
    command.load()()


if __name__ == "__main__":
    main()
