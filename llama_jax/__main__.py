"""`python -m llama_jax` and `llama-jax`: the command line, with a person's mistakes turned into one line and exit code 2."""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> None:
    import click

    from llama_jax.cli import app, join_pairs
    from llama_jax.errors import UserError

    try:
        sys.exit(app(join_pairs(sys.argv[1:] if arguments is None else arguments), standalone_mode=False))
    except (UserError, click.ClickException) as error:
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        print(f"error: {' '.join(message.split())}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
