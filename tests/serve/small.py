"""A small random model whose tokens are bytes, so that a token is soon drawn, and a server of it in a process of its
own."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Iterator

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from llama_jax import checkpoint, config
from llama_jax.tokenizer import Tokenizer
from llama_lab.serve import process, wire
from llama_lab.serve.service import Service
from tests.conftest import build

NAME, CONTEXT = "tiny", 512
BEGINS, ENDS = "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


def byte_tokenizer() -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([BEGINS, ENDS])
    return Tokenizer(backend.to_str(), TEMPLATE, BEGINS, ENDS, (backend.token_to_id(ENDS),))


def made() -> checkpoint.Checkpoint:
    """The model as one that was loaded."""
    tokenizer = byte_tokenizer()
    cfg = config.tiny(vocab_size=tokenizer.backend.get_vocab_size(), max_position_embeddings=CONTEXT)
    return checkpoint.Checkpoint(NAME, cfg, build(cfg), tokenizer, "0" * 64, "random:tiny", "float32")


@contextlib.contextmanager
def server(*options: str) -> Iterator[tuple[subprocess.Popen, int]]:
    """(the process, its port) of a server that listens. options: those of `main`."""
    command = [sys.executable, "-m", "tests.serve.small", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            line = child.stdout.readline()
            assert line, child.stderr.read()
            yield child, int(line)
        finally:
            child.kill()


def main() -> None:
    """Serve until told to end; the port is printed once it listens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--grace", type=float, default=process.GRACE_S, help="seconds for what runs at the end")
    parser.add_argument("--patience", type=float, default=wire.BODY_S, help="seconds for a body to come")
    parser.add_argument("--head", type=float, default=process.HEAD_S, help="seconds for a request's head to come")
    asked = parser.parse_args()
    process.GRACE_S, wire.BODY_S, process.HEAD_S = asked.grace, asked.patience, asked.head
    service, bound = Service(made(), "step+donate", asked.slots, CONTEXT), process.bind("127.0.0.1", 0)
    service.start()
    process.run(service, bound, None, lambda: print(bound.getsockname()[1], flush=True))


if __name__ == "__main__":
    main()
