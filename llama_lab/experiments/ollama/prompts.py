"""Prompts written by a running Ollama, as in the original notebook, and the answers of that Ollama and of `loop+fused`:
`python -m llama_lab.experiments.ollama.prompts` writes `data/prompts-ollama.json`.

The Ollama is the one that `make ollama` built, or the one at OLLAMA_HOST; the model is a GGUF file of ours.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

import pandas as pd

from llama_jax import checkpoint, generate, prompts
from llama_jax.plumbing import boundary, files, paths
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import lab
from llama_lab.bench.workload import encoder
from llama_lab.peers import UnavailableError, ollama, ollama_questions

MODULE = "llama_lab.experiments.ollama.prompts"
FILE = paths.ROOT / "data" / "prompts-ollama.json"
WRITTEN = dict(temperature=0.8, num_predict=1000, num_ctx=2048)  # options of the request for prompts, besides its seed
PATIENCE_S = 1200  # for all prompts, which come in one piece
ANSWERED = ollama.GREEDY | dict(num_predict=24, num_ctx=512)  # and of the questions themselves
PLACEMENT = "loop+fused"  # the same blocks of four bits


class Made(boundary.Declared):
    """What the file holds. answers: of each prompt, the first ANSWERED tokens, greedily. ours: the same tokens of
    `placement`."""

    prompts: list[str]
    answers: list[str]
    ours: list[str]
    placement: str
    model: str
    weights_hash: str
    ollama: str
    request: str
    options: dict[str, Any]
    answer_options: dict[str, Any]
    command: str


def load(path: Path = FILE) -> Made:
    return boundary.read(Made, boundary.load(path), str(path))


def make(model: str, count: int, seed: int, path: Path) -> Made:
    """Have prompts written, ask both, and keep everything. Raises UserError, UnavailableError."""
    bare = lab.without_weights(model)
    server = ollama.connect(bare)
    client = type(server.client)(str(server.client._client.base_url), timeout=PATIENCE_S)
    options = WRITTEN | dict(seed=seed)
    questions = ollama_questions.written_by(server.model, count, client, **options)
    rendered = prompts.as_chat(bare.tokenizer, questions)  # by our template: the same token ids for everybody
    answers = [
        client.generate(model=server.model, prompt=text, raw=True, options=ANSWERED).response for text in rendered
    ]
    loaded = checkpoint.load(model)
    engine, encode, most = generate.build(loaded, PLACEMENT), encoder(loaded), ANSWERED["num_predict"]
    own = [generate.answer(engine, [encode(text)], most, loaded.tokenizer.stop)[0] for text in rendered]
    made = Made(
        prompts=questions,
        answers=answers,
        ours=[loaded.tokenizer.decode(answer.token_ids) for answer in own],
        placement=PLACEMENT,
        model=model,
        weights_hash=bare.weights_hash,
        ollama=client._client.get("/api/version").json()["version"],
        request=ollama_questions.REQUEST.format(count=count),
        options=options,
        answer_options=ANSWERED,
        command=f"python -m {MODULE} --model {model} --count {count} --seed {seed}",
    )
    files.write(path, json.dumps(made.model_dump(), indent=1, ensure_ascii=False) + "\n")
    return made


def alike(made: Made) -> list[tuple[int, int]]:
    """Of each prompt how many words of both answers are the same from the start on, and how many the longer one has."""
    pairs = [[text.split() for text in both] for both in zip(made.answers, made.ours, strict=True)]
    same = [takewhile(lambda words: words[0] == words[1], zip(*pair, strict=False)) for pair in pairs]
    return [(len(list(words)), max(map(len, pair))) for words, pair in zip(same, pairs, strict=True)]


def parted(made: Made) -> str:
    """`9 of 20 pairs of answers are the same throughout; the others part after 0 to 17 words`."""
    found = alike(made)
    early = sorted(same for same, most in found if same < most)
    after = f"; the others part after {early[0]} to {early[-1]} words" if early else ""
    return f"{len(found) - len(early)} of {len(found)} pairs of answers are the same throughout{after}"


def both_answers(made: Made) -> pd.DataFrame:
    """One row per prompt: both answers, and how many of the longer one's words are the same from the start on."""
    same = [f"{words} of {most}" for words, most in alike(made)]
    columns = {"question": made.prompts, "Ollama": made.answers, made.placement: made.ours, "same words": same}
    return pd.DataFrame(columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=checkpoint.DEFAULT, help="a model that was read from a GGUF file")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=FILE)
    asked = parser.parse_args()
    try:
        made = make(asked.model, asked.count, asked.seed, asked.out)
    except UnavailableError as error:
        sys.exit(f"error: {error.reason} {error.remedy}")
    except UserError as error:
        sys.exit(f"error: {error}")
    print("\n".join(made.prompts))


if __name__ == "__main__":
    main()
