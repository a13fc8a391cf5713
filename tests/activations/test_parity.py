"""Every site of every layer equals transformers' hooks, hidden states and attentions; a wrong layer, mask or position
does not."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from llama_jax import config
from llama_jax.config import RopeScaling
from llama_lab import corpus
from llama_lab.activations import program
from llama_lab.activations.program import Extractor
from llama_lab.activations.spec import OF_A_LAYER, OF_THE_MODEL, ActivationSpec
from tests.activations.reference import Reference, random_checkpoint
from tests.conftest import relative_error

SAME, OTHER = 1e-4, 1e-2
T = 24
LENGTHS = (5, 17, 1, T, 9, T + 16, 0, 3)  # one fills a row, one is cut in two, one is empty
ALL = ActivationSpec((*((name, "all") for name in OF_A_LAYER), *OF_THE_MODEL), dtype="float32")
FAMILIES = {
    "llama": config.tiny(),
    "llama, rope scaling": config.tiny(
        rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 16), tie_word_embeddings=False
    ),
    "qwen2": config.tiny("qwen2", head_dim=16),
    "gpt2": config.tiny("gpt2"),
}


class Subject:
    """One family: its extractor of all sites, compiled once, and what transformers has for the same examples."""

    def __init__(self, cfg):
        self.checkpoint = random_checkpoint(cfg)
        rng = np.random.default_rng(1)
        self.examples = [rng.integers(0, cfg.vocab_size, n).tolist() for n in LENGTHS]
        self.extractor = Extractor(self.checkpoint, ALL, (3, T))
        self.expected = Reference(self.checkpoint).rows(self.examples, T)

    def rows(self, pack, extractor=None, change=lambda batch: batch):
        """{site: [rows ...]} of all examples; `change`: what to do to each batch before it runs."""
        extractor = extractor or self.extractor
        extractor.pack = pack  # a matter of the plan alone: where all positions are kept the program is the same
        unit = extractor.plan(0, 0, self.examples)
        found = {site: np.empty((unit.size, *shape), np.float32) for site, shape in extractor.row_shapes.items()}
        for batch in unit.batches:
            for site, value in extractor.dispatch(change(batch))[0].items():
                found[site][batch.to] = extractor.kept(batch, value)
        return found


@pytest.fixture(scope="module")
def subjects():
    made = {}

    def of(name):
        if name not in made:
            made[name] = Subject(FAMILIES[name])
        return made[name]

    return of


def errors(found, expected):
    return {site: relative_error(found[site], expected[site]) for site in found}


@pytest.mark.parametrize("pack", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_site_equals_transformers(subjects, name, pack):
    subject = subjects(name)
    found = subject.rows(pack)
    assert list(found) == [str(site) for site in ALL.resolve(subject.checkpoint.config)]
    assert len(found) == 2 * len(OF_A_LAYER) + len(OF_THE_MODEL)
    wrong = {site: error for site, error in errors(found, subject.expected).items() if not error <= SAME}
    assert not wrong
    assert all(found[site].shape == subject.expected[site].shape for site in found)


def test_packed_neighbours_do_share_rows(subjects):
    """Or the packed half of the test above would say nothing."""
    extractor = subjects("llama").extractor
    extractor.pack = True
    unit = extractor.plan(0, 0, subjects("llama").examples)
    assert max(batch.segments.max() for batch in unit.batches) >= 3


@pytest.mark.parametrize("name", FAMILIES)
def test_a_neighbouring_layer_is_another(subjects, name):
    """Control: what the test above would see, were a layer's number off by one."""
    subject = subjects(name)
    found = subject.rows(True)
    for site in OF_A_LAYER:
        for mine, theirs in ((0, 1), (1, 0)):
            assert relative_error(found[f"{site}:{mine}"], subject.expected[f"{site}:{theirs}"]) > OTHER, site
    near = [("resid_pre", "resid_mid"), ("resid_mid", "resid_post"), ("attn_out", "mlp_out"), ("k", "v")]
    for mine, theirs in near:
        assert relative_error(found[f"{mine}:1"], subject.expected[f"{theirs}:1"]) > OTHER, mine
    assert relative_error(found["resid_post:1"], subject.expected["ln_final"]) > OTHER


def no_segments(segments):
    """Back, whosever token it is."""
    t = segments.shape[1]
    return jnp.tril(jnp.ones((t, t), bool)) & (segments[:, :, None] > 0)


def both_ways(segments):
    """Within the segment, ahead as well."""
    return (segments[:, :, None] == segments[:, None, :]) & (segments[:, :, None] > 0)


@pytest.mark.parametrize(
    ("name", "mask", "packs"),
    [("llama", no_segments, [True]), ("gpt2", no_segments, [True]), ("llama", both_ways, [True, False])],
    ids=["llama, no segments", "gpt2, no segments", "llama, both ways"],
)
def test_another_mask_is_seen(subjects, monkeypatch, name, mask, packs):
    """Control: packed neighbours that see each other, or tokens that see ahead, are not taken for right."""
    monkeypatch.setattr(program, "segment_mask", mask)
    subject = subjects(name)
    wrong = Extractor(subject.checkpoint, ActivationSpec("attn_out:0 resid_post:1 logits", dtype="float32"), (3, T))
    for pack in packs:
        assert all(error > OTHER for error in errors(subject.rows(pack, wrong), subject.expected).values())


def test_without_segments_the_first_of_a_row_is_still_right(subjects, monkeypatch):
    """So it is the neighbours before it that a token would see, and nothing else that is wrong."""
    subject = subjects("llama")
    monkeypatch.setattr(program, "segment_mask", no_segments)
    wrong = Extractor(subject.checkpoint, ActivationSpec("resid_post:1", dtype="float32"), (3, T))
    assert errors(subject.rows(False, wrong), subject.expected)["resid_post:1"] <= SAME


def running_on(batch):
    """Positions that count through a row, as if its segments were one text."""
    return replace(batch, positions=np.where(batch.segments > 0, np.arange(T, dtype=np.int32), 0))


def doubled(batch):
    return replace(batch, positions=2 * batch.positions)


def test_positions_that_do_not_restart_are_seen(subjects):
    """Control: in GPT-2, whose positions are learned, from the first layer on."""
    subject = subjects("gpt2")
    found = errors(subject.rows(True, change=running_on), subject.expected)
    assert all(error > OTHER for error in found.values()), found
    assert all(error <= SAME for error in errors(subject.rows(False, change=running_on), subject.expected).values())


@pytest.mark.parametrize("name", ["llama", "llama, rope scaling", "qwen2"])
def test_rotary_positions_matter_by_their_distance_alone(subjects, name):
    """Control: twice the distance is another text. The same distance from another start is not, and so cannot serve as
    one."""
    subject = subjects(name)
    stretched, shifted = (
        errors(subject.rows(True, change=change), subject.expected) for change in (doubled, running_on)
    )
    first = {"resid_pre:0", "q:0", "k:0", "v:0"}  # before any rotation
    for site in stretched:
        if not site.startswith("pattern"):  # laid out by the positions themselves
            assert (stretched[site] <= SAME) if site in first else (stretched[site] > OTHER), site
            assert shifted[site] <= SAME, site


@pytest.mark.slow
def test_the_packaged_model_equals_transformers(packaged):
    """Token by token, too: in a trained model the first token's residual stream is so large that a norm over all hides
    the rest."""
    spec = ActivationSpec((*((name, (0, 14, 15, -1)) for name in OF_A_LAYER), *OF_THE_MODEL), dtype="float32")
    extractor = Extractor(packaged, spec, (2, 64), row_limit=2**20)
    texts = [text for text in corpus.paragraphs() if 60 < len(text) < 400][:4]
    expected = Reference(packaged).rows([packaged.tokenizer.encode(text) for text in texts], 64)
    for pack in (True, False):
        extractor.pack = pack
        found = extractor(texts)
        for site in extractor.row_shapes:
            assert relative_error(found[site], expected[site]) <= SAME, site
            assert (
                max(relative_error(mine, theirs) for mine, theirs in zip(found[site], expected[site], strict=True))
                <= 10 * SAME
            ), site
        for site in OF_A_LAYER:
            mine, theirs = found[f"{site}:14"], expected[f"{site}:15"]
            assert np.median([relative_error(m, t) for m, t in zip(mine, theirs, strict=True)]) > OTHER, site
