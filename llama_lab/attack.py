"""Does a server give the same answer whatever else is in its batch? `python attack.py URL` asks any OpenAI-like server.

Each request is first sent alone. Then the same requests are sent in company, and every answer with another text, reason
or number of tokens is counted:

alone again         nothing beside it, but the server may have kept keys from the first time
in another order    as above, in random order, so that it kept keys of other requests
at once             all of them
scattered           all of them, in random order, each after a random wait
beside who leaves   at once, among as many streams with long prompts whose readers leave after the first event

Half of the requests are greedy and half sampled with their own seeds; every third shares its beginning with others.
This file needs only Python, so it can be copied to the server.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from urllib.parse import urlsplit


class Company(NamedTuple):
    """How the requests of a situation overlap with others."""

    at_once: bool = False
    shuffled: bool = False
    wait_s: float = 0.0  # at most, before a request
    leaving: bool = False


SITUATIONS = {
    "alone again": Company(),
    "in another order": Company(shuffled=True),
    "at once": Company(at_once=True),
    "scattered": Company(at_once=True, shuffled=True, wait_s=2.0),
    "beside who leaves": Company(at_once=True, leaving=True),
}
TIMEOUT_S = 600
BUSY = (429, 503)  # to be asked again
BEGINNING = "The keeper of the lighthouse wrote down what he saw, every evening, in a book with a green cover. "
WORDS = ("river", "stone", "bread", "winter", "clock", "garden", "letter", "engine", "harbour", "music", "teacher")


class AttackError(Exception):
    """The server does not answer as asked: one line."""


def requests_of(model: str, count: int, tokens: int, seed: int) -> list[dict]:
    """The bodies of this many requests with different texts."""
    drawn, bodies = random.Random(seed), []
    for i in range(count):
        text = f"Story {i}. " + " ".join(drawn.choices(WORDS, k=drawn.randint(8, 40)))
        body = dict(model=model, prompt=BEGINNING * (i % 3 == 0) + text, max_tokens=tokens, temperature=0)
        bodies.append(body | (dict(temperature=1, seed=seed + i) if i % 2 else {}))
    return bodies


class Server:
    """An OpenAI-like server at a URL, which may end in /v1."""

    def __init__(self, url: str, key: str = ""):
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise AttackError(f"{url!r} is not the URL of a server; give one such as http://127.0.0.1:8080.")
        kinds = dict(http=http.client.HTTPConnection, https=http.client.HTTPSConnection)
        self.kind, self.place, self.url = kinds[parts.scheme], (parts.hostname, parts.port), url
        self.path = parts.path.rstrip("/").removesuffix("/v1") + "/v1"
        self.headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def ask(self, path: str, body: dict | None = None, leave: bool = False) -> dict:
        """The server's JSON, requested again while it is busy; {} if the reader leaves after the first byte."""
        until = time.monotonic() + TIMEOUT_S
        while True:
            status, content = self.heard(path, body, leave)
            if leave:
                return {}
            if status not in BUSY or time.monotonic() > until:
                break
            time.sleep(0.2)
        words = content[:200].decode(errors="replace")
        if status != 200:
            raise AttackError(f"{self.url} answers {path} with {status}: {words}")
        try:
            return json.loads(content)
        except ValueError:
            raise AttackError(f"{self.url} answers {path} with something other than JSON: {words}") from None

    def heard(self, path: str, body: dict | None, leave: bool) -> tuple[int, bytes]:
        """Status and content of one answer; a reader that leaves takes one byte."""
        connection = self.kind(*self.place, timeout=TIMEOUT_S)
        try:
            given = None if body is None else json.dumps(body)
            connection.request("GET" if body is None else "POST", self.path + path, given, self.headers)
            answer = connection.getresponse()
            return answer.status, answer.read(1) if leave else answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise AttackError(f"{self.url} does not answer {path}: {error or type(error).__name__}.") from None
        finally:
            connection.close()

    def model(self) -> str:
        """The first model that it lists."""
        known = self.ask("/models").get("data") or []
        if not known:
            raise AttackError(f"{self.url} lists no model; name one.")
        return known[0]["id"]

    def answer(self, body: dict) -> tuple:
        """(text, reason, tokens) of a completion."""
        said = self.ask("/completions", body)
        try:
            choice = said["choices"][0]
            return choice["text"], choice.get("finish_reason"), said.get("usage", {}).get("completion_tokens")
        except (LookupError, TypeError, AttributeError):
            raise AttackError(f"{self.url} answers /completions with something other than a completion.") from None


def attack(server: Server, bodies: list[dict], seed: int = 0, tell: Callable = lambda line: None) -> list[dict]:
    """One entry per situation: {situation, greedy, sampled: how many answers differ from those alone, of_greedy,
    of_sampled: of how many, failed: requests without an answer}. Raises AttackError if a request alone gets none."""
    tell(f"each of {len(bodies)} requests alone")
    alone, entries = [server.answer(body) for body in bodies], []
    for situation, company in SITUATIONS.items():
        tell(situation)
        answers = together(server, bodies, company, random.Random(f"{seed} {situation}"))
        entry = dict(situation=situation, failed=answers.count(None))
        for kind, mine in (("greedy", slice(0, None, 2)), ("sampled", slice(1, None, 2))):
            pairs = [pair for pair in zip(alone[mine], answers[mine], strict=True) if pair[1]]
            entry |= {kind: sum(before != now for before, now in pairs), f"of_{kind}": len(pairs)}
        entries.append(entry)
    return entries


def together(server: Server, bodies: list[dict], company: Company, drawn: random.Random) -> list[tuple | None]:
    """The answers to all requests in some company, in the requests' order; None for one that failed."""
    order = drawn.sample(range(len(bodies)), len(bodies)) if company.shuffled else range(len(bodies))
    waits = [drawn.uniform(0, company.wait_s) for _ in bodies]
    answers: list[tuple | None] = [None] * len(bodies)

    def ask(i: int) -> None:
        time.sleep(waits[i])
        with contextlib.suppress(AttackError):
            answers[i] = server.answer(bodies[i])

    def leave(body: dict) -> None:
        with contextlib.suppress(AttackError):  # nobody waits for its answer
            server.ask("/completions", body | dict(prompt=BEGINNING * 8 + body["prompt"], stream=True), leave=True)

    others = [threading.Thread(target=leave, args=(body,)) for body in bodies if company.leaving]
    for other in others:
        other.start()
    with ThreadPoolExecutor(len(bodies) if company.at_once else 1) as pool:
        list(pool.map(ask, order))
    for other in others:
        other.join()
    return answers


def differs(entries: list[dict]) -> bool:
    return any(e["greedy"] or e["sampled"] for e in entries)


def lines(entries: list[dict]) -> list[str]:
    """What was found, a line per situation."""
    return [
        f"{e['situation']}: {e['greedy']} of {e['of_greedy']} greedy and {e['sampled']} of {e['of_sampled']} sampled"
        f" answers differ{'; ' + str(e['failed']) + ' requests failed' if e['failed'] else ''}"
        for e in entries
    ]


def main(arguments: list[str]) -> int:
    """0 if no answer differs, 1 if one does, 2 for a mistake."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="such as http://127.0.0.1:8080")
    parser.add_argument("--model", help="the first that the server lists by default")
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=24, help="of each answer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--key", default="", help="an API key")
    given = parser.parse_args(arguments)
    try:
        server = Server(given.url, given.key)
        bodies = requests_of(given.model or server.model(), given.requests, given.tokens, given.seed)
        entries = attack(server, bodies, given.seed, lambda line: print(line, file=sys.stderr))
    except AttackError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines(entries)))
    return int(differs(entries))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
