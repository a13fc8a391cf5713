"""OpenVINO GenAI on the GGUF file that a checkpoint came from (`make peers` installs its wheels).

openvino        its `LLMPipeline`, a token per callback, on attention of its processor plugin over a state
openvino+q8_0   the same, on the same model in Q8_0; +q4_0: in Q4_0 (`requantised.py`)

It converts the file's blocks into its own matrices, u4 or u8 with scales and zero points for 32 columns, computes with
activations rounded to 8 bits, in bfloat16 if the processor has it, and keeps keys and values in u8. These are its
defaults, and its fastest settings. Zero points are whole numbers, so Q4_1, whose minima are not, loses some quality. It
uses as many threads as this process has cores. A prompt is never read from a prefix cache: the pipeline that has one is
not used.

The pipeline does not return logits, so its quality is measured on the same model in OpenVINO's own form, which it makes
from the file and which is kept in the user's cache.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from llama_jax import checkpoint
from llama_jax.plumbing import paths, threads
from llama_lab import peers
from llama_lab.bench.process import allowed_cores
from llama_lab.bench.workload import Subject, Workload
from llama_lab.peers import UnavailableError, llamacpp

FAMILIES = ("llama", "qwen2")  # that its reader of GGUF files knows
CACHE_BYTES = 1  # a cached value's: u8
MODEL = "openvino_model.xml"
REMEDY = "Leave the peer out, or convert the model with optimum-intel."
PIPELINE = peers.Latest()  # the one opened last


def missing(name: str, model: str) -> tuple[str, str] | None:
    """It reads GGUF files of some families wherever its packages are installed."""
    if find_spec("openvino_genai") is None:
        return "openvino-genai is not installed.", "Run `make peers`."
    if gap := llamacpp.no_file(model, "OpenVINO GenAI"):
        return gap
    kind = checkpoint.load_config(model).model_type
    return None if kind in FAMILIES else (f"OpenVINO GenAI reads no GGUF file of a {kind}.", REMEDY)


def subject(loaded: checkpoint.Checkpoint, name: str) -> Subject:
    """OpenVINO as a subject of the protocol. Raises UnavailableError if it cannot read the file."""
    return llamacpp.on_file(loaded, name, lambda path: Pipeline(opened(path)), cache_bytes=CACHE_BYTES)


def library():
    """`openvino_genai`. Raises UnavailableError if it is installed and does not load."""
    try:
        import openvino_genai
    except (ImportError, OSError) as error:
        raise UnavailableError(f"OpenVINO does not load: {last_line(error)}", REMEDY) from error
    return openvino_genai


def opened(path: Path):
    """A file as its pipeline; the one opened last is kept."""
    openvino_genai = library()
    checkpoint.gguf.split.whole(path)  # raises for a damaged one, over which its own reader would end the process

    def make():
        try:
            return openvino_genai.LLMPipeline(str(path), "CPU", ATTENTION_BACKEND="SDPA", **cores())
        except RuntimeError as error:
            raise UnavailableError(f"OpenVINO cannot read {path}: {last_line(error)}", REMEDY) from error

    return PIPELINE.get((str(path), path.stat().st_mtime_ns), make)


def cores() -> dict:
    return dict(INFERENCE_NUM_THREADS=len(allowed_cores()))


def last_line(error: Exception) -> str:
    """What an exception of OpenVINO's says, without the places in its own sources."""
    return ([line.strip() for line in str(error).splitlines() if line.strip()] or ["it does not say why"])[-1]


class Pipeline:
    """`LLMPipeline.generate` in its own thread, whose callback hands over each token as it comes. One row."""

    def __init__(self, pipeline):
        self.pipeline = pipeline

    def run(self, ids: Sequence[int], work: Workload) -> Iterator[np.ndarray]:
        """Blocks [n 1] of greedy tokens. Raises RuntimeError for more than one row, and where OpenVINO fails."""
        import openvino
        import openvino_genai as genai

        peers.check_one_row(work, "OpenVINO")

        def produce(channel: threads.Channel) -> None:
            class Streamer(genai.StreamerBase):
                def write(self, tokens) -> genai.StreamingStatus:
                    reads = channel.put(tokens if isinstance(tokens, list) else [tokens])
                    return genai.StreamingStatus.RUNNING if reads else genai.StreamingStatus.CANCEL

                def end(self) -> None:
                    """Nothing is held back."""

            config, row = genai.GenerationConfig(), np.asarray(ids, np.int64)[None]
            config.max_new_tokens, config.ignore_eos, config.do_sample = work.new_tokens, True, False
            try:
                asked = genai.TokenizedInputs(openvino.Tensor(row), openvino.Tensor(np.ones_like(row)))
                self.pipeline.generate(asked, config, Streamer())
            except Exception as error:
                raise RuntimeError(last_line(error)) from error

        for block in threads.threaded(produce, None, "openvino"):
            yield np.array(block, np.int32)[:, None]


def logits(loaded: checkpoint.Checkpoint, name: str = "openvino") -> Callable[[Sequence[int]], np.ndarray]:
    """ids → OpenVINO's logits of every position, float32 [T V], by the model that the measured pipeline runs.

    Raises UnavailableError if it cannot read the file, or the cache cannot be written.
    """
    made = converted(llamacpp.weights_of(loaded, name), loaded.weights_hash)
    import openvino

    try:
        model = openvino.Core().compile_model(made, "CPU", cores())
    except RuntimeError as error:
        raise UnavailableError(f"OpenVINO cannot compile {made}: {last_line(error)}", REMEDY) from error

    def read(ids: Sequence[int]) -> np.ndarray:
        row = np.asarray(ids, np.int64)[None]
        given = dict(input_ids=row, attention_mask=np.ones_like(row), position_ids=np.arange(len(ids))[None])
        request = model.create_infer_request()
        return np.array(request.infer(given | dict(beam_idx=np.zeros(1, np.int32)))["logits"][0], np.float32)

    return read


def converted(path: Path, digest: str) -> Path:
    """The model in OpenVINO's own form, from the user's cache or made now: the pipeline leaves it beside the file."""
    openvino_genai = library()
    home = paths.cache("openvino", f"{digest[:16]}-{path.stem[-40:]}-{openvino_genai.__version__.partition('-')[0]}")
    if (home / MODEL).is_file():
        return home / MODEL
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as folder:
            link = Path(folder) / path.name
            link.symlink_to(path.resolve())
            openvino_genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True, **cores())
            link.unlink()
            if not (Path(folder) / MODEL).is_file():
                raise RuntimeError("it left none")
            os.rename(folder, home)
            os.mkdir(folder)  # which is removed with its content
    except (OSError, RuntimeError) as error:
        if (home / MODEL).is_file():  # another process was sooner
            return home / MODEL
        raise UnavailableError(f"OpenVINO could not convert {path} in {home}: {last_line(error)}", REMEDY) from error
    return home / MODEL
