"""What cannot be measured is named before anything is loaded or started: one table of wrong inputs for all
experiments, whose words name culprit and remedy."""

from dataclasses import replace

import pytest

from llama_jax import checkpoint
from llama_jax.placement import Placement
from llama_jax.plumbing.errors import UserError
from llama_lab.bench import AGAIN, process
from llama_lab.bench.record import Run
from llama_lab.experiments.fewer_bits.accuracy import Accuracy
from llama_lab.experiments.fewer_bits.reading import Readings
from llama_lab.experiments.growth.measure import size
from llama_lab.experiments.past_one_token_a_pass.measure import PastOneToken
from llama_lab.experiments.shapes_and_recompilation import measure as shapes
from llama_lab.experiments.your_own_placement.measure import SHORT
from tests.experiments.conftest import TINY
from tests.experiments.fewer_bits.test_measure import CONTEST as BITS
from tests.experiments.growth.test_measure import growth
from tests.experiments.ollama.test_measure import CONTEST as PEERS
from tests.experiments.past_one_token_a_pass.test_measure import ASKED
from tests.experiments.shapes_and_recompilation.test_measure import recompilation
from tests.experiments.your_own_placement.test_measure import MINE, own

DRAFTS, READINGS = PastOneToken(**ASKED), Readings(TINY, 0, quality_tokens=50, window=20, placements=(), peers=())
CHOICES = Accuracy(model=TINY, placements=(), peers=())
BEFORE_LOADING = [
    (BITS, dict(peers=("lamacpp",)), "No such peer: 'lamacpp'"),
    (BITS, dict(placements=("lop",)), "No such placement: 'lop'"),
    (BITS, dict(placements=()), "No placement or no context"),
    (BITS, dict(contexts=()), "No placement or no context"),
    (BITS, dict(placements=("loop", "loop")), "named twice: loop, loop"),
    (BITS, dict(placements=("loop+gemv", "loop")), "loop\\+gemv is the baseline"),
    (BITS, dict(blocks=0), "blocks is 0"),
    (BITS, dict(starts=0), "starts is 0"),
    (BITS, dict(new_tokens=1), "a rate needs two tokens"),
    (BITS, dict(contexts=(24, 6)), "leaves no room for a prompt"),
    (BITS, dict(contexts=(9000,)), "more than the model's 8192"),
    (READINGS, dict(placements=("lop",)), "No such placement: 'lop'"),
    (CHOICES, dict(placements=("lop",)), "No such placement: 'lop'"),
    (CHOICES, dict(peers=("lamacpp",)), "No such peer: 'lamacpp'"),
    (READINGS, dict(quality_tokens=0), "tokens is 0"),
    (READINGS, dict(window=0), "window is 0"),
    (READINGS, dict(window=9000), "more than the model's context of 8192"),
    (PEERS, dict(peers=("lamacpp",)), "No such peer: 'lamacpp'. Did you mean .*llamacpp"),
    (PEERS, dict(placements=("lop",)), "No such placement: 'lop'"),
    (PEERS, dict(placements=()), "No placement is named"),
    (PEERS, dict(rivals=("step",)), "rival 'step' is not among"),
    (PEERS, dict(peers=("torch", "torch")), "named twice"),
    (PEERS, dict(turns=0), "turns is 0"),
    (PEERS, dict(turns=9), "9 turns asked for; the conversation has 5"),
    (PEERS, dict(chats=0), "chats is 0"),
    (PEERS, dict(new_tokens=1), "must be 2 or more"),
    (PEERS, dict(blocks=0), "blocks is 0"),
    (DRAFTS, dict(placements=("lop",)), "No such placement: 'lop'"),
    (DRAFTS, dict(placements=("loop+fused", "loop")), "loop\\+fused is the baseline"),
    (DRAFTS, dict(blocks=0), "blocks is 0"),
    (DRAFTS, dict(each=0), "each is 0"),
    (own(MINE, ["eager"]), {}, "must hold step"),
    (own(MINE, ["step", "lop"]), {}, "Did you mean 'loop'"),
    (own(Placement("step"), ["step"]), {}, "The name 'step' is taken"),
    (own(Placement(SHORT), ["step"]), {}, "is taken"),
    (own(Placement("step" + AGAIN), ["step"]), {}, "is taken"),
    (own(MINE, ["step", "step"]), {}, "is taken"),
    (growth(), dict(model="random:nothing"), "random:smollm2-135m"),
    (growth(), dict(model="gpt2"), "random:smollm2-135m"),
    (growth(), dict(new_tokens=16), "new_tokens is 16"),
    (growth(), dict(answers=0), "answers is 0"),
    (growth(), dict(layers=(0,)), "layers is 0"),
    (growth(), dict(width=(100,)), "multiple of 192"),
    (growth(), dict(context=(9000,)), "64 to 8192"),
    (growth(), dict(context=(32,)), "64 to 8192"),
    (growth(), dict(batch=("x",)), "whole number"),
    (growth(), dict(models=("random:smolm loop+bf16",)), "smollm2"),
    (growth(), dict(models=("random:llama-3.2-3b lop",)), "No such placement"),
    (recompilation(), dict(prompts=0), "prompts is 0"),
    (recompilation(), dict(prompts=2), "requests is 1"),
    (recompilation(), dict(new_tokens=0), "new_tokens is 0"),
    (recompilation(), dict(batch=1), "batch is 1"),
    (recompilation(), dict(surprise_processes=0), "surprise_processes is 0"),
]
BEFORE_MEASURING = [  # what the model itself says
    (recompilation(), dict(new_tokens=9000), "exceed the model's context"),
    (PEERS, dict(model=TINY + ",max_position_embeddings=96"), "exceed the model's context of 96"),
]


@pytest.mark.parametrize(("experiment", "changes", "words"), [*BEFORE_LOADING, *BEFORE_MEASURING])
def test_mistakes_are_named_before_anything_is_measured(monkeypatch, experiment, changes, words):
    monkeypatch.setattr(process, "start", lambda *a, **k: pytest.fail("a process was started"))
    monkeypatch.setattr(shapes, "expect", lambda *a: pytest.fail("a reference was made"))
    if (experiment, changes, words) in BEFORE_LOADING:
        monkeypatch.setattr(checkpoint, "load", lambda *_: pytest.fail("loaded"))
    with pytest.raises(UserError, match=words):
        replace(experiment, **changes).record()


def test_an_axis_of_growth_that_does_not_exist_is_named():
    with pytest.raises(UserError, match="layers, width"):
        size(Run("depth", 3))
