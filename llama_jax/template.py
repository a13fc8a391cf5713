"""A process that renders one chat template. It reads the source and then any number of conversations, one JSON line
each, and answers each conversation with a line that has the text or the error.

A template is a program that comes with the weights. Jinja's sandbox keeps it away from the machine. This process limits
its time and memory; the kernel ends it if it takes more. `llama_jax.chat` runs it as a script, which imports only
Jinja.
"""

import datetime
import json
import resource
import signal
import sys

SECONDS, BYTES, CHARACTERS = 10, 1 << 29, 1 << 22


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends an answer, not the conversation
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    environment()  # imports Jinja
    source = json.loads(sys.stdin.readline() or "null")
    for line in sys.stdin:
        signal.alarm(SECONDS)  # nobody handles it: it ends the process, in whatever loop it is
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
        made[source] = environment().from_string(source)
    return made[source]


def environment():
    """Jinja as transformers' `apply_chat_template` sets it up."""
    from jinja2 import ext, nodes, sandbox, utils

    class Generation(ext.Extension):
        """{% generation %} … {% endgeneration %}: the assistant's text, marked for training."""

        tags = {"generation"}  # noqa: RUF012 - Jinja's own way

        def parse(self, parser):
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    class Namespace(utils.Namespace):
        """An object without any of the names that Python's own objects have."""

        def __setitem__(self, name, value):
            if str(name).startswith("_"):
                raise sandbox.SecurityError(f"a namespace cannot hold {name!r}")
            super().__setitem__(name, value)

    def namespace(*pairs, **more) -> Namespace:
        made = Namespace()
        for name, value in dict(*pairs, **more).items():
            made[name] = value
        return made

    made = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    made.globals |= dict(raise_exception=refuse, strftime_now=strftime_now, namespace=namespace)
    made.filters["tojson"] = as_json
    return made


def strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def as_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    """transformers'; Jinja's writes < as \\u003c."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def refuse(reason: str):
    from jinja2 import TemplateError

    raise TemplateError(reason)


if __name__ == "__main__":
    main()
