"""What each notebook claims of made data: a person's sentence only where every ratio that it names bears it out, else
the generic one. One row a notebook."""

import importlib
import pkgutil
import re
from types import SimpleNamespace as Made

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_lab import experiments
from llama_lab.bench import standings, summary
from llama_lab.bench.statistics import Ratio, Verdict, of_times

FASTER, SLOWER = Ratio(2.5, 2.2, 2.8, 6), Ratio(0.4, 0.35, 0.45, 6)
OPEN, EQUAL, WIDE = Ratio(1.1, 0.9, 1.3, 6), Ratio(1.0, 0.99, 1.01, 20), Ratio(4.0, 1.8, 9.1, 4)
RATIOS = st.sampled_from([FASTER, SLOWER, OPEN, EQUAL, WIDE])


def finding(name):
    """The module of an experiment that makes its claim."""
    package = importlib.import_module(f"llama_lab.experiments.{name}")
    for stem in {m.name for m in pkgutil.iter_modules(package.__path__)} & {"finding", "table", "chart", "measure"}:
        module = importlib.import_module(f"{package.__name__}.{stem}")
        if getattr(getattr(module, "claim", None), "__module__", "") == module.__name__:
            return module
    return None


def in_turn(*ratios):
    """A function that gives these ratios one after the other, whatever it is asked."""
    left = iter(ratios)
    return lambda *_, **__: next(left)


def entry(name, backend, **more):
    return dict(name=name, backend=backend, dtype="float32", decode=Made(n=6, median=10.0), **more)


def of_headline(patch, first, second):
    patch.setattr(summary, "paired_ratio", in_turn(first, second))
    return finding("headline").claim([])


def of_text_generation(patch, first, second):
    module = finding("text_generation")
    patch.setattr(module.statistics, "unpaired_ratio", in_turn(first))
    patch.setattr(module, "seconds", lambda _: {module.CACHED: [1.0], module.UNCACHED: [first.value]})
    return module.claim([])


def of_honest_measurement(patch, first, second):
    named = {"short warm-up": second, "baseline cold": first, "both warm": second}
    return finding("honest_measurement").claim([dict(ratio=ratio, label=label) for label, ratio in named.items()])


def of_jit_placement(patch, first, second):
    patch.setattr(summary, "paired_ratio", in_turn(first, second, second))
    rows = [dict(name=name, valid_trials=6, tokens_equal=True, tokens_per_second=dict(median=10)) for name in ("loop",)]
    return finding("jit_placement").claim([], rows)


def of_shapes(patch, first, second):
    module = finding("shapes_and_recompilation")
    times = dict(buckets=of_times(first), exact=of_times(second))
    patch.setattr(module, "ratios", lambda *_: times)
    policies = [
        Made(subject=name, total=(t,), programs=p) for name, t, p in (("one", 1, 2), ("buckets", 3, 4), ("exact", 2, 4))
    ]
    return module.claim(policies)


def of_kv_cache(patch, first, second):
    return finding("kv_cache").claim({32: first, 768: second})


def of_compile_time(patch, first, second):
    module = finding("compile_time")
    patch.setattr(module.table, "start_ratio", in_turn(of_times(first), of_times(second), of_times(EQUAL)))
    return module.claim([])


def of_fewer_bits(patch, first, second):
    module = finding("fewer_bits")
    patch.setattr(module, "ratio", in_turn(first))
    return module.claim([], {256: [entry("loop", standings.JAX), entry("llamacpp", standings.LLAMACPP)]})


def of_ollama(patch, first, second):
    patch.setattr(standings, "ratio", in_turn(first))
    return finding("ollama").claim([], [entry("loop", standings.JAX), entry("ollama", standings.OLLAMA)])


def of_first_token(patch, first, second):
    trials = [
        Made(subject=name, backend=backend, dtype="float32", quantisation="none")
        for name, backend in (("step", "jax"), ("torch", "torch"))
    ]
    ratios = [dict(tokens=n, best="step", peer="torch", ratio=ratio) for n, ratio in ((10, first), (400, second))]
    return finding("time_to_first_token").claim(trials, ratios)


def of_extraction(patch, first, second):
    module = finding("activation_extraction")
    patch.setattr(module.extraction_table, "like_for_like", in_turn(first))
    patch.setattr(module.extraction_table, "rivals", lambda *_: {module.CUT: second})
    return module.claim([])


def of_gpu(patch, first, second):
    module = finding("gpu")
    subjects = [dict(subject=name) for name in ("loop", module.data.BASELINE)]
    patch.setattr(module.data, "models", lambda _: ["random:tiny"])
    patch.setattr(module.data, "rates", lambda *_: subjects)
    patch.setattr(module.data, "between", in_turn(first))
    return module.claim([Made(platform="gpu", device="H100")])


def of_upgrading(patch, first, second):
    module = finding("upgrading_jax")
    patch.setattr(module, "releases", lambda _: ["0.1", "0.2"])
    patch.setattr(module, "rate", lambda _, name, __: Made(median=float(name)))
    patch.setattr(module, "wrong", lambda *_: [])
    patch.setattr(module, "ratio", in_turn(first))
    return module.claim([], dict(facts={}))


def of_drafts(patch, first, second):
    entries = [
        entry("loop+lookup", standings.JAX, task=task, ratio=ratio, prompts=4)
        for task, ratio in (("copy", first), ("open", second))
    ]
    return finding("past_one_token_a_pass").claim(entries, "a model")


# how it is made, the person's sentence, and the verdicts of the first and of the second ratio that it needs (None: any)
F, S, UNDECIDED = (Verdict.FASTER,), (Verdict.SLOWER,), (Verdict.UNDECIDED,)
ROWS = {
    "headline": (of_headline, "; kernels on quantised weights ", F, F),
    "text_generation": (of_text_generation, "reruns the whole reserved length: an answer takes", F, None),
    "honest_measurement": (of_honest_measurement, "such a ratio measures the compiler", F, F),
    "jit_placement": (of_jit_placement, "compiling the whole answer adds", F, F),
    "shapes_and_recompilation": (of_shapes, "A new server is fastest with one", F, F),
    "kv_cache": (of_kv_cache, ", 2.50 after 768.", F, F),
    "compile_time": (of_compile_time, "At equal loading the first token takes", S, S),
    "fewer_bits": (of_fewer_bits, "decodes faster than llama.cpp", F, None),
    "ollama": (of_ollama, "times as fast as Ollama", F, None),
    "time_to_first_token": (of_first_token, "our first token is earliest at 2 of 2 lengths", F, F),
    "activation_extraction": (of_extraction, "times that of transformers", F, F),
    "gpu": (of_gpu, "On the GPU loop decodes", F, None),
    "upgrading_jax": (of_upgrading, "times as fast as 0.1", F, None),
    "past_one_token_a_pass": (of_drafts, "no effect is shown on open questions", F, UNDECIDED),
}


@pytest.mark.parametrize("name", ROWS)
@settings(deadline=None)
@given(first=RATIOS, second=RATIOS)
def test_a_sentence_is_said_only_where_the_ratios_bear_it_out(name, first, second):
    make, sentence, *needed = ROWS[name]
    with pytest.MonkeyPatch.context() as patch:
        said = make(patch, first, second)
    generic = re.search(r": ([^:]+), n = \d+\.$", said.sentence)
    if sentence in said.sentence:
        assert all(of is None or ratio.verdict in of for ratio, of in zip((first, second), needed, strict=True))
    elif generic:
        assert generic[1] in set(Verdict)
    else:  # a person's sentence that claims less
        assert [c.outcome for c in said.evidence] == [said.evidence[0].ratio.verdict]
        assert said.evidence[0].outcome in (("slower" in said.sentence and S) or F)
    assert said.sentence.endswith(".")


@pytest.mark.parametrize("name", ROWS)
def test_the_sentence_is_said_where_they_do_and_the_generic_one_where_they_do_not(name):
    make, sentence, *needed = ROWS[name]
    right = [OPEN if of == UNDECIDED else SLOWER if of == S else FASTER for of in needed]
    right = (
        [WIDE, OPEN] if name == "fewer_bits" else [Ratio(7, 6, 8, 6), FASTER] if name == "honest_measurement" else right
    )
    with pytest.MonkeyPatch.context() as patch:
        said = make(patch, *right)
    assert sentence in said.sentence
    assert len(said.sentence.split()) <= 20
    with pytest.MonkeyPatch.context() as patch:
        assert ": equal within 2%, n = 20." in make(patch, EQUAL, EQUAL).sentence


def grown(before, after):
    same = dict(axis="layers", placement="step", bytes_ms=1.0, usual_bytes_ms=1.0, flops_ms=2.0)
    return [dict(layers=[dict(same, value=v, bytes=float(v), median=ms) for v, ms in (("2", before), ("8", after))])]


def calls(*dispatch):
    made = dict(weights=1e6, wait=Made(median=1.0), ratios={})
    return [[made | dict(model=str(i), dispatch=Made(median=d)) for i, d in enumerate(dispatch)]]


def served(tokens_s):
    load = dict(
        first=Made(n=3),
        server="step",
        backend="jax",
        rate=8.0,
        arrived=8.0,
        n=9,
        refused=0,
        void=0,
        offered=100.0,
        tokens_s=tokens_s,
    )
    return [dict(step=[load], ollama=[load | dict(server="ollama", backend="ollama", tokens_s=40.0)])]


def on_files(*ratios):
    sizes = [
        entry("loop", "jax", what="decode", tokens=64, ratio=ratio, file=f"m/q{i}") for i, ratio in enumerate(ratios)
    ]
    return [[*sizes, *(peer(e["file"]) for e in sizes)]]


def peer(file):
    return entry("llamacpp", "llama.cpp", what="decode", tokens=64, ratio=None, file=file)


def with_instructions(first, second):
    """A file of one type, and one that people have, timed with two sets of instructions."""
    (found,) = on_files(first)
    people = [e | dict(file=f"n/{isa}", ratio=r) for isa, r in (("avx2", second), ("avx512", first)) for e in found[:1]]
    return found, [*people, *(peer(e["file"]) for e in people)]


def with_prompts(wide, narrow):
    """The same, and a prompt read of the second with each set."""
    found, people = with_instructions(FASTER, FASTER)
    asked = (("n/avx512", wide), ("n/avx2", narrow))
    rate = dict(what="prefill", rate=Made(median=1.0))
    prompts = [e | rate | dict(file=file, ratio=ratio) for file, ratio in asked for e in found[:1]]
    return found, [*people, *prompts]


FATES = [Made(name="a", caught="the gate", why=""), Made(name="b", caught="", why="")]
COUNTED = [  # experiment, what its claim is made of, what it says
    (
        "host_loop",
        calls(1.0, 0.25),
        "^The host spends 50% of launch-plus-wait time launching at 1M parameters, 20% at 1M.$",
    ),
    ("host_loop", [[]], "No model"),
    (
        "growth",
        grown(3.0, 8.0),
        "under step takes 1.5 to 4.0 times its memory or arithmetic limit.$",
    ),
    ("growth", [{}], "No size"),
    ("your_own_placement", [FATES], "1 of 2 faulty programs are refused.$"),
    (
        "what_serving_needs",
        served(99.0),
        "^Asked for 100 tokens/s .8 requests/s., `llama-jax serve` .`step`. delivers 99, Ollama 40.$",
    ),
    ("what_serving_needs", served(60.0), "at most 60 tokens/s, Ollama 40.$"),
    ("what_serving_needs", [{}], "No server"),
    (
        "compiled_kernels",
        on_files(FASTER, OPEN),
        "^At a context of 64 tokens compiled kernels lead on 1 of 2 files. They .* llama.cpp on 1 of 2 files.$",
    ),
    ("compiled_kernels", with_instructions(FASTER, FASTER), "on 2 of 2 files.$"),
    ("compiled_kernels", with_instructions(FASTER, OPEN), "on 1 of 2 files.$"),
    (
        "compiled_kernels",
        with_prompts(FASTER, SLOWER),
        "; with only our kernels limited to AVX2, they fall behind on 1 of 1 prompts",
    ),
    ("compiled_kernels", with_prompts(SLOWER, SLOWER), "files; they fall behind on 2 of 2 prompts"),
    ("compiled_kernels", [[]], "No size"),
]


@pytest.mark.parametrize(("name", "data", "words"), COUNTED)
def test_findings_without_a_ratio_say_what_they_count(name, data, words):
    assert re.search(words, finding(name).claim(*data).sentence)


def test_every_finding_is_looked_at():
    have = {module.name for module in pkgutil.iter_modules(experiments.__path__) if finding(module.name)}
    assert have == set(ROWS) | {name for name, *_ in COUNTED}
