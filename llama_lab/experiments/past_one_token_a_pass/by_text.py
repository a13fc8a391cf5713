"""What drafts gain and cost by kind of text: whole answers of real weights, with all instructions of this processor and
with fewer.

Rows of a pass are nearly free with AVX-512, where a token waits for memory, and expensive without it, where drafts must
not cost anything either. A file is named MODEL/INSTRUCTIONS, those that our kernels are compiled for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from llama_jax import checkpoint, generate, prompts
from llama_jax.checkpoint import Checkpoint
from llama_jax.kernels import isa
from llama_jax.placement import parse
from llama_lab import peers
from llama_lab.bench import available, frames, gate, passages, protocol, roofline, summary
from llama_lab.bench.experiment import Experiment, Named, Point, Runner, Seed, check_counts, whole
from llama_lab.bench.lab import Lab
from llama_lab.bench.process import Interpreter
from llama_lab.bench.record import Trial
from llama_lab.bench.workload import Workload, encoder, shuffled
from llama_lab.experiments.past_one_token_a_pass import measure

PASSAGE = (
    "The ferry leaves the harbour at seven, when the fishing boats come home. It carries the post, two dozen passengers"
    " and, on Fridays, a piano tuner who visits the three islands in turn. Nobody has counted the gulls that follow it,"
    " but the captain's daughter has given names to the eleven that she can tell apart."
)
ASKED = (  # kind of text, question; how K is chosen was tuned on others
    ("open", "How does a refrigerator keep food cold?"),
    ("open", "Why do people dream?"),
    ("code", "Write a Python function that checks whether a number is prime."),
    ("code", "Write an SQL query that finds the ten customers with the most orders."),
    ("copy", f"Repeat this text word for word:\n\n{PASSAGE}"),
    ("copy", f"Put this text between quotation marks and change nothing else:\n\n{PASSAGE}"),
    ("list", "List the letters of the alphabet, each with a word that begins with it."),
    ("list", "List the planets of the solar system with their distance from the sun."),
    ("repeating", "Write the sentence 'I will not talk in class.' thirty times."),
    ("repeating", "Count from 1 to 10, five times."),
)
SHAPE = ("file", "text")  # what subjects are compared within


@dataclass(frozen=True, kw_only=True)
class Texts(Experiment):
    """Placements and peers on each text of each file, in turn, `text_blocks` times in each of `text_processes`
    processes; `run` of a row is the file's name. The first placement has no drafts. Models and instructions that are
    not here, and subjects whose draft model is missing or does not fit, are reported as missing. A peer has the
    instructions that it was built for."""

    optional = True

    placements: Annotated[tuple[str, ...], Named("text_placements")]
    peers: Annotated[tuple[str, ...], Named("text_peers")]
    files: Annotated[tuple[str, ...], Named("text_files")]
    tokens: Annotated[int, Named("text_tokens")]
    blocks: Annotated[int, Named("text_blocks")]
    processes: Annotated[int, Named("text_processes")]
    seed: Seed

    def check(self) -> None:
        check_counts(blocks=self.blocks, processes=self.processes, placements=len(self.placements))
        for name in self.placements:
            parse(name)
        peers.check(self.peers)
        for name in self.files:
            model, _ = available.named(name, tuple(isa.NEEDS))
            if gap(name) is None:
                passages.check_contexts(model, [2 * self.tokens], self.tokens)

    def measure(self, runner: Runner) -> tuple[list[Trial], dict]:
        absent = {name: why for name in self.files if (why := gap(name))}
        runner.journal.note_missing(self.files, list(absent.values()))
        for name in (name for name in self.files if name not in absent):
            model, wanted = available.named(name, tuple(isa.NEEDS))
            path, interpreter = checkpoint.gguf_file(model), Interpreter(settings={isa.VARIABLE: wanted})
            names = (*self.placements, *self.peers)
            without = available.gaps(names, str(path))
            for why in without:
                runner.journal.note(missing={k: text.replace(str(path), name) for k, text in why.items()})
            here = [each for each in names if each not in {why["name"] for why in without}]
            for process in range(self.processes):
                last = self.blocks * (process + 1) - 1
                runner.progress(f"texts of {name}", process, self.processes)
                asked = dict(name=name, names=here, process=process)
                how = dict(model=str(path), interpreter=interpreter)
                runner.child(Point(name, last, self.answering, len(here) * len(ASKED), asked, **how))
        passes = [row for note in runner.journal.notes for row in note.get("passes", ())]
        return runner.rows, dict(missing=runner.missing, passes=passes)

    def answering(self, lab: Lab, name: str, names: Sequence[str], process: int) -> None:
        """All subjects on one file. The process that is the first says what the passes did. A peer's arithmetic is its
        own, and so are its tokens."""
        loaded = checkpoint.load(lab.model, checkpoint.own_blocks(checkpoint.find(lab.model)))
        work = workload(loaded, self.tokens, self.seed)
        subjects = available.built(lab, loaded, names)
        for subject in subjects:
            protocol.warm_up(subject, work, lab.announce, enough=1)
        reference, probe = protocol.Reference(loaded, work), roofline.Probe()
        for block in range(self.blocks * process, self.blocks * (process + 1)):
            bandwidth = probe.bandwidth()
            orders = [shuffled(subjects, self.seed, block, prompt) for prompt in range(len(ASKED))]
            pairs = [(prompt, subject) for prompt, order in enumerate(orders) for subject in order]
            for place, (prompt, subject) in enumerate(pairs):
                lab.announce(what=f"{name}: {ASKED[prompt][0]}, {subject.name}")
                where = dict(order=place, phase="warm", block=block)
                made, tokens = lab.trial(subject, work, prompt, **where)
                judged = made if gate.approximate(made.quantisation) else reference.judge(made, tokens)
                lab.keep(judged, model=name, bandwidth_gbps=bandwidth)
        if not process:
            drafted = [each for each in names if each in self.placements and parse(each).drafts]
            passes = [row for placement in drafted for row in measure.passes(loaded, placement, work)]
            lab.notes["passes"] = [row | dict(file=name) for row in passes]


def gap(name: str) -> dict | None:
    """Why nothing can be measured of a file here: {name, reason, remedy}."""
    model, wanted = available.named(name, tuple(isa.NEEDS))
    return available.file_gap(name, model, wanted)


def workload(loaded: Checkpoint, tokens: int, seed: int) -> Workload:
    """All questions, as the model's chat template renders them."""
    texts = prompts.as_chat(loaded.tokenizer, [question for _, question in ASKED])
    longest = max(len(encoder(loaded)(text)) for text in texts)
    return Workload(texts, tokens, generate.bucket(longest), seed=seed)


def rate_of(trial: Trial) -> float:
    """Tokens/s of a whole answer, its prompt included."""
    return trial.new_tokens / trial.token_times_ns[-1] * 1e9


def table(trials: Sequence[Trial], meta: dict, seed: int = 0) -> list[dict]:
    """One entry per file, kind of text and subject: {file, text, name, rate: Summary of `rate_of`, ratio: over the
    first placement, None of itself, equal: whether both made the same tokens of each question, None of a peer too,
    passes: as `taken`, n, void}."""
    rows, asked = whole(trials), meta.get("parameters", {})
    first = next(iter(asked.get("placements", ())), "")
    by = dict(file="run", text=lambda t: ASKED[t.prompt][0], name="subject")
    entries = summary.tally(rows, by, dict(rate=rate_of), seed=seed).to_dict("records")
    plain = {tuple(e[part] for part in SHAPE): e for e in entries if e["name"] == first}
    for e in entries:
        without = plain.get(tuple(e[part] for part in SHAPE))
        alone = without is None or without is e
        e["ratio"] = None if alone else summary.over(answers(e), answers(without), seed)
        e["equal"] = None if alone or e["name"] in asked.get("peers", ()) else texts_of(e) == texts_of(without)
        e["passes"] = taken(meta.get("passes", ()), e)
    return entries


def answers(entry: dict) -> dict:
    return {(*summary.in_block(t), t.prompt): rate_of(t) for t in entry["rows"]}


def texts_of(entry: dict) -> set:
    return {(t.prompt, t.tokens_sha256) for t in entry["every"] if t.token_times_ns}


def taken(passes: Sequence[dict], entry: dict) -> dict | None:
    """{tokens_a_pass, tried: drafts per pass, accepted: share of the drafts, costs} of an entry's subject; None if it
    has no drafts."""
    some = [row for row in passes if (row["file"], row["subject"], ASKED[row["prompt"]][0])
            == (entry["file"], entry["name"], entry["text"])]  # fmt: skip
    made, depths = ([n for row in some for n in row[part]] for part in ("made", "depths"))
    if not made:
        return None
    accepted = (sum(made) - len(made)) / sum(depths) if sum(depths) else None
    return dict(
        tokens_a_pass=sum(made) / len(made), tried=sum(depths) / len(depths), accepted=accepted, costs=some[0]["costs"]
    )


def words(entries: Sequence[dict]) -> str:
    """One line per file and placement with drafts: `smollm2/avx2, loop+fused+lookup: 0.99x (list) to 1.9x (copy)
    ...`."""
    lines = []
    names = dict.fromkeys((e["file"], e["name"]) for e in entries if e["ratio"] and e["ratio"].n)
    for file, name in names:
        some = [e for e in entries if (e["file"], e["name"]) == (file, name) and e["ratio"] and e["ratio"].n]
        least, most = (choose(some, key=lambda e: e["ratio"].value) for choose in (min, max))
        costs = some[0]["passes"] and ", ".join(f"{cost:.2f}" for cost in some[0]["passes"]["costs"])
        lines.append(
            f"{file}, {name}: {least['ratio'].words} ({least['text']}) to {most['ratio'].words} ({most['text']})"
            + (f"; passes of its depths cost {costs} plain steps" if costs else "")
        )
    return "\n".join(lines) or "Not recorded yet: no file was measured with drafts on these texts."


COLUMNS = frames.Columns(
    {
        **frames.same("file", "text"),
        "subject": "name",
        "tokens/s": "rate.median",
        **{"over plain": "ratio.value", "low": "ratio.low", "high": "ratio.high"},
        "same tokens": lambda e: {True: "yes", False: "NO"}.get(e["equal"], ""),
        "tokens a pass": "passes.tokens_a_pass",
        "drafts a pass": "passes.tried",
        "accepted": "passes.accepted",
        "n": "n",
        "void": "void",
    },
    index=(*SHAPE, "subject"),
    digits={"tokens/s": 1, "over plain": 3, "low": 3, "high": 3, "tokens a pass": 2, "drafts a pass": 2, "accepted": 2},
)
