"""`python -m llama_jax` and `llama-jax`: the command line, with a person's mistakes turned into one line and exit code
2."""

from __future__ import annotations

import os
import sys


def main(arguments: list[str] | None = None) -> None:
    from llama_jax.errors import UserError

    try:
        code = run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()  # here, where a closed pipe is noticed, and not at the interpreter's end
        sys.exit(code)
    except BrokenPipeError:  # the reader, such as `head`, has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)  # as typer does where a verb notices
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
    from llama_jax import cli
    from llama_jax.cli import suite

    if suite.asked(arguments):
        return suite.main(arguments)
    from llama_jax.cli.common import join_pairs

    # a verb may start itself again, in several processes
    return cli.program()(join_pairs(arguments), standalone_mode=False, obj=arguments)


if __name__ == "__main__":
    main()
