"""Requests: prompts, token ids, samplers, sizes."""

from pathlib import Path

from hypothesis import strategies as st

from llama_jax import chat, checkpoint, generate
from llama_jax.sampling import Sampler
from tests.fuzz import hostile

PLACEMENTS = ("step", "loop", "chunk8", "step+growing", "loop+growing", "step+nocache", "step+queue", "loop+callback")
HONEST = {"prompts": [[5, 6, 7]], "new_tokens": 4, "seeds": 0, "stop": (), "slots": None, "length": None}


@st.composite
def requests(draw):
    """(placement, changed arguments of `generate.answer`, changed settings of the sampler)."""
    given, settings = {}, {}
    for _ in range(draw(st.sampled_from([1, 1, 2]))):
        match draw(st.sampled_from(["prompts", "ids", "ids", "sampler", "sampler", "fill", *list(HONEST)[1:]])):
            case "ids":
                given["prompts"] = [draw(st.lists(hostile.values, min_size=0, max_size=3))]
            case "sampler":
                names = ["temperature", "top_k", "top_p", "min_p", "repetition_penalty"]
                settings[draw(st.sampled_from(names))] = draw(hostile.values)
            case "fill":  # caches that are exactly full, or short of one place
                given |= {"prompts": [[5] * 16], "new_tokens": 9, "slots": draw(st.sampled_from([23, 24, 25]))}
            case name:
                given[name] = draw(hostile.values)
    return draw(st.sampled_from(PLACEMENTS)), given, settings


def request(example, base: Path, folder: Path) -> str:
    placement, given, settings = example
    loaded = checkpoint.load(str(base / "hf"))
    sampler = Sampler(**settings)
    answers = generate.answer(generate.build(loaded, placement), **(HONEST | given), sampler=sampler)
    return " ".join(str(len(answer.token_ids)) for answer in answers)


def prompt(example, base: Path, folder: Path) -> str:
    tokenizer = checkpoint.find(str(base / "hf")).tokenizer()
    kind, value = example
    return str(len(chat.encode(tokenizer, value) if kind == "messages" else tokenizer.encode(value)))


messages = st.lists(
    st.one_of(hostile.values, st.fixed_dictionaries({"role": hostile.values, "content": hostile.values})), max_size=3
)
prompts = st.one_of(
    st.tuples(st.just("text"), hostile.values),
    st.tuples(st.just("messages"), st.one_of(hostile.values, messages)),
)
