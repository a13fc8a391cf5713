"""`python -m llama_jax` and `llama-jax`: the command line, with a person's mistakes turned into one line and exit code 2."""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> None:
    import typer

    from llama_jax.cli import app, join_pairs
    from llama_jax.errors import UserError

    try:
        sys.exit(app(join_pairs(sys.argv[1:] if arguments is None else arguments), standalone_mode=False))
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if isinstance(error, UserError):
            message = str(error)
        elif hasattr(error, "format_message"):  # typer's own: an unknown verb or option, a value of the wrong type
            message = error.format_message()
        else:
            raise
        if message:  # empty when no verb was given: the help has been printed
            print(f"error: {' '.join(message.split())}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
