"""Whether company changes an answer: `llama_lab.attack` against our placements that serve and against other servers,
each on the same file and with the same number of slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llama_jax.placement import parse
from llama_lab import attack
from llama_lab.bench import frames, standings, summary
from llama_lab.bench.experiment import Experiment, Point, Runner, Seed, check_counts, whole
from llama_lab.bench.lab import Lab
from llama_lab.bench.record import Row
from llama_lab.experiments.what_serving_needs import measure, servers
from llama_lab.serve import stepper

COUNTS = ("greedy", "of_greedy", "sampled", "of_sampled", "failed")


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
            if name not in measure.PEERS:
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
        bare, queue, peer = lab.without_weights(), 4 * self.attack_requests, measure.PEERS.get(name)
        made = (
            peer[0](bare, self.slots, queue)
            if peer
            else servers.ours(lab.model, name, self.slots, queue, measure.BUCKETS)
        )
        with made as running:
            measure.warm(running)
            seed = self.seed + 1000 * number
            bodies = attack.requests_of(running.model, self.attack_requests, self.attack_tokens, seed)
            entries = attack.attack(attack.Server(running.url), bodies, seed, lambda line: lab.announce(what=line))
        common = dict(subject=name, backend=peer[1] if peer else standings.JAX, model=lab.model, slots=self.slots)
        common |= dict(seed=seed, phase="warm", valid=True, reason="")
        for order, entry in enumerate(entries):
            lab.keep(Attacked(**lab.identity, **common, **entry, order=order))


# What the rows say ----------------------------------------------------------------------------------------------------


def table(rows: Sequence[Attacked]) -> list[dict]:
    """One entry per server and situation, as they were asked: {name, backend, situation, and the sums of COUNTS}."""
    by = summary.grouped(whole(rows), lambda row: (row.subject, row.situation))
    return [
        dict(name=name, backend=some[0].backend, situation=situation)
        | {count: sum(getattr(row, count) for row in some) for count in COUNTS}
        for (name, situation), some in by.items()
    ]


def words(entries: Sequence[dict]) -> str:
    """One line per server: how many of its answers differ in company from those alone."""
    lines = []
    for name, some in summary.grouped(entries, lambda e: e["name"]).items():
        total = {count: sum(e[count] for e in some) for count in COUNTS}
        asked, failed = total["of_greedy"] + total["of_sampled"], total["failed"]
        lines.append(
            f"{name}: {total['greedy'] + total['sampled']} of {asked:,} answers differ from those alone"
            + (f", {failed} requests failed" if failed else "")
        )
    return "\n".join(lines) or "Not recorded yet: no server was attacked."


COLUMNS = frames.Columns(
    {
        "server": "name",
        "situation": "situation",
        "greedy that differ": "greedy",
        "greedy": "of_greedy",
        "sampled that differ": "sampled",
        "sampled": "of_sampled",
        "failed": "failed",
    },
    index=("server", "situation"),
)
