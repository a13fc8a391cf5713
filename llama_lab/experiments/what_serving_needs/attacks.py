"""Whether company changes an answer: `llama_lab.attack` against our placements that serve and against other servers,
each on the same file and with the same number of slots. All keep what they read of earlier prompts, as by default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llama_jax.placement import parse
from llama_lab import attack
from llama_lab.bench import frames, standings, summary
from llama_lab.bench.experiment import Experiment, Point, Runner, Seed, check_counts, whole
from llama_lab.bench.lab import Lab
from llama_lab.bench.record import Row
from llama_lab.bench.wording import listed
from llama_lab.experiments.what_serving_needs import measure, servers
from llama_lab.serve import stepper

OURS = {"fused": "ours under `+fused`", "gemv": "ours under `+gemv`", "none": "ours under XLA's products"}  # by kernels


class Attacked(Row):
    """The requests of one situation of `attack.SITUATIONS`: how many answers differ from those alone, of how many."""

    subject: str  # placement or peer
    backend: str
    model: str
    slots: int
    situation: str
    greedy: int
    of_greedy: int
    sampled: int
    of_sampled: int
    failed: int  # requests without an answer


@dataclass(frozen=True, kw_only=True)
class Attacks(Experiment):
    """Each server in `attack_rounds` processes of its own, each with other requests."""

    kind = Attacked
    optional = True

    model: str
    seed: Seed
    attacked: tuple[str, ...]
    attack_requests: int
    attack_tokens: int
    attack_rounds: int
    slots: int

    def check(self) -> None:
        check_counts(requests=self.attack_requests, tokens=self.attack_tokens, rounds=self.attack_rounds)
        for name in self.attacked:
            if name not in servers.PEERS:
                stepper.check(parse(name))

    def points(self, runner: Runner) -> list[Point]:
        here = measure.present(runner, self.attacked)
        return [
            Point(name, number, self.attacking, len(attack.SITUATIONS), dict(name=name, number=number))
            for number in range(self.attack_rounds) for name in here
        ]  # fmt: skip

    def about(self, runner: Runner) -> dict:
        return dict(missing=runner.missing)

    def attacking(self, lab: Lab, name: str, number: int) -> None:
        """One server, started, attacked and ended. Its queue holds all who come at once."""
        with servers.started(lab, name, self.slots, 4 * self.attack_requests, keeps=True) as running:
            measure.warm(running)
            seed = self.seed + 1000 * number
            bodies = attack.requests_of(running.model, self.attack_requests, self.attack_tokens, seed)
            entries = attack.attack(attack.Server(running.url), bodies, seed, lambda line: lab.announce(what=line))
        backend = servers.PEERS.get(name, standings.JAX)
        common = dict(subject=name, backend=backend, model=lab.model, slots=self.slots)
        common |= dict(seed=seed, phase="warm", valid=True, reason="")
        for order, entry in enumerate(entries):
            lab.keep(Attacked(**lab.identity, **common, **entry, order=order))


# What the rows say ----------------------------------------------------------------------------------------------------


def table(rows: Sequence[Attacked]) -> list[dict]:
    """One entry per server, as they were asked: {name, and the keys of `summed`}."""
    return [dict(name=name) | summed(some) for name, some in summary.grouped(whole(rows), "subject").items()]


def sides(rows: Sequence[Attacked]) -> list[dict]:
    """The same, our placements together by their kernels."""

    def side(row: Attacked) -> str:
        return OURS[parse(row.subject).kernels] if row.backend == standings.JAX else row.subject

    return [dict(name=name) | summed(some) for name, some in summary.grouped(whole(rows), side).items()]


def summed(rows: Sequence[Attacked]) -> dict:
    """of: answers in all situations. differ: how many are not those alone, greedy: of those the greedy ones; and how
    many in each of `attack.SITUATIONS`. failed: requests without an answer."""
    each = {name: sum(r.greedy + r.sampled for r in rows if r.situation == name) for name in attack.SITUATIONS}
    of, greedy = sum(r.of_greedy + r.of_sampled for r in rows), sum(r.greedy for r in rows)
    return dict(of=of, differ=sum(each.values()), greedy=greedy, failed=sum(r.failed for r in rows)) | each


def words(rows: Sequence[Attacked]) -> str:
    """How many answers differ from those alone, a line each of `sides`; and which servers change them in company alone,
    which without any, and which never."""
    lines = []
    for e in sides(rows):
        where = listed([f"{e[name]:,} {name}" for name in attack.SITUATIONS if e[name]])
        failed = f"; {e['failed']:,} requests failed" if e["failed"] else ""
        differ = f"{e['differ']:,} of {e['of']:,} answers differ from those alone"
        lines.append(f"{e['name']}: {differ}{where and f' ({where})'}{failed}")
    for kind, some in summary.grouped(table(rows), kind_of).items():
        lines.append(f"{kind}: {listed([e['name'] for e in some])}")
    return "\n".join(lines) or "Not recorded yet: no server was attacked."


def kind_of(entry: dict) -> str:
    if not entry["differ"]:
        return "the same answers in every situation"
    lonely = [name for name, company in attack.SITUATIONS.items() if not company.at_once and entry[name]]
    return "other answers even when nobody else asks" if lonely else "other answers only among others"


COLUMNS = frames.Columns(
    {"server": "name", "answers": "of", "differ": "differ", "of them greedy": "greedy"}
    | frames.same(*attack.SITUATIONS, "failed"),
    index="server",
)
