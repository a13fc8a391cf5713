"""A process that renders one chat template: its source, then any number of conversations, one JSON line each; for
each conversation a line with the text or with what went wrong.

A template is a program that came with the weights. Jinja's sandbox keeps it from the machine, and this process from its
time and memory: the kernel ends it where it takes more. `llama_jax.chat` runs it as a script; it imports Jinja
alone.
"""

import datetime
import json
import resource
import signal
import sys

SECONDS, BYTES, CHARACTERS = 10, 1 << 29, 1 << 22


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends an answer, not the conversation
    signal.alarm(SECONDS)  # nobody handles it: it ends the process, in whatever loop it is
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    source = json.loads(sys.stdin.readline())
    for line in sys.stdin:
        signal.alarm(SECONDS)
        print(json.dumps(answer(source, json.loads(line))), flush=True)
        signal.alarm(0)


def answer(source: str, given: dict) -> dict:
    """{"text": …} or {"error": …}."""
    try:
        text = compiled(source).render(given)
    except MemoryError:
        return {"error": f"it needs more than {BYTES >> 20} MB"}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    if len(text) > CHARACTERS:
        return {"error": f"it writes {len(text):,} characters, more than {CHARACTERS:,}"}
    return {"text": text}


def compiled(source: str, made={}):  # noqa: B006 - it is meant to be kept
    """The template, ready to render."""
    if source not in made:
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        environment.filters["tojson"] = as_json  # transformers'; Jinja's writes < as \u003c
        made[source] = environment.from_string(source)
    return made[source]


def as_json(value, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def refuse(reason: str):
    from jinja2 import TemplateError

    raise TemplateError(reason)


if __name__ == "__main__":
    main()
