"""`python -m llama_jax` and `llama-jax`: the command line, with a person's mistakes turned into one line and exit code 2."""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> None:
    from llama_jax.errors import UserError

    try:
        sys.exit(run(sys.argv[1:] if arguments is None else arguments))
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":  # the latter is typer's
            print("interrupted", file=sys.stderr)
            sys.exit(130)
        if isinstance(error, UserError):
            message = str(error)
        elif hasattr(error, "format_message"):  # typer's own: an unknown verb or option, a value of the wrong type
            message = error.format_message()
        else:
            raise
        if message:  # empty when no verb was given: the help has been printed
            print(f"error: {' '.join(message.split())}", file=sys.stderr)
        sys.exit(2)


def run(arguments: list[str]) -> int | None:
    """The verb that is asked for; returns its exit code."""
    from llama_jax import cli_suite

    if cli_suite.asked(arguments):
        return cli_suite.main(arguments)
    from llama_jax.cli import app, join_pairs

    return app(join_pairs(arguments), standalone_mode=False)


if __name__ == "__main__":
    main()
