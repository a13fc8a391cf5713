"""What trials of placements and peers say, on made-up trials whose answer is known."""

import re

import pytest

from llama_lab.bench import AGAIN, footprints, standings
from llama_lab.bench.frames import show
from llama_lab.experiments.ollama import measure, table
from tests.bench.test_record import trial

# tokens/s
RATES = {"loop": 60, "step": 50, "loop+bf16": 55, "transformers": 20, "torch": 30, "llamacpp": 150, "ollama": 120}
FUSED = {"loop+fused": 300}
KINDS = {"loop+bf16": dict(dtype="bfloat16", bytes_per_token=5e5)}
KINDS |= {name: dict(backend="torch") for name in ("transformers", "torch")}
KINDS |= {
    name: dict(backend=backend, dtype="q4_1", quantisation="gguf-q4_1", bytes_per_token=2e5)
    for name, backend in (("llamacpp", "llama.cpp"), ("ollama", "ollama"))
}
KINDS["loop+fused"] = dict(quantisation="gguf+fused", bytes_per_token=2e5)
VOID = dict(valid=False, reason="wrong: token 1 is 2")
MISSING = [dict(name="ollama", reason="No Ollama server answers at x.", remedy="Start it with `ollama serve`.")]


def answer(name, block=0, run=standings.MAIN, slower=1.0, tokens=11, **changes):
    """An answer at the subject's rate; the noise falls on all subjects of a block alike but for its own small share."""
    gap = slower * 1e3 / (RATES | FUSED)[name.removesuffix(AGAIN)] * (1 + 0.002 * ((block * 7 + len(name)) % 5))
    more = {**KINDS.get(name.removesuffix(AGAIN), {}), **changes}
    return trial(name, block, [50 + gap * i for i in range(tokens)], run=run, **more)


def contest(names=tuple(RATES), blocks=8, turns=3, chats=4):
    main = [answer(name, block) for block in range(blocks) for name in (*names, "loop" + AGAIN)]
    sizes = dict(peak_rss_bytes=10**9, weights_bytes=5 * 10**8, kv_bytes=10**6)
    cold = [answer(n, run=f"{footprints.MEMORY} {n}", phase="cold", **sizes) for n in names]
    asked = [(n, block, k) for block in range(chats) for n in names for k in range(turns)]
    chat = [answer(n, block, measure.CHAT, tokens=2 + k, prompt=k) for n, block, k in asked]
    longest = max(t.new_tokens for t in chat)
    return main + cold + [t.model_copy(update=dict(new_tokens=longest)) for t in chat]


def test_the_ladder_keeps_the_order_and_each_ones_own_limit():
    entries = standings.ladder(contest(), list(RATES))
    assert [e["name"] for e in entries] == list(RATES)
    at = {e["name"]: e for e in entries}
    assert at["loop"]["decode"].median == pytest.approx(60, rel=0.02)
    assert at["loop"]["decode"].n == 8  # of main alone, without its twin
    assert at["loop"]["limit"] == pytest.approx(1e9 / 1e6)
    assert at["llamacpp"]["limit"] == pytest.approx(5 * at["loop"]["limit"])
    assert at["loop"]["ttft"].median == pytest.approx(50)
    arithmetics = ["float32", "float32", "bfloat16", "torch", "torch", "llamacpp", "ollama"]
    assert [at[name]["arithmetic"] for name in RATES] == arithmetics
    made = [t.model_copy(update=VOID) if t.subject == "torch" else t for t in contest()]
    entry = next(e for e in standings.ladder(made, list(RATES)) if e["name"] == "torch")
    assert (entry["decode"].n, entry["void"], entry["reasons"]) == (0, 8, ["wrong: token 1 is 2"])
    absent = standings.ladder(made, ["absent"])[0]
    assert (absent["decode"].n, absent["backend"], absent["dtype"], absent["limit"]) == (0, None, None, None)


def test_a_figure_has_the_fastest_of_each_arithmetic_and_whatever_failed():
    made = [t.model_copy(update=VOID) if t.subject == "step" else t for t in contest((*RATES, "loop+fused"))]
    entries = standings.ladder(made, [*RATES, "loop+fused"])
    shown = [e["name"] for e in standings.of_each_arithmetic(entries)]
    assert shown == ["loop", "step", "loop+bf16", "torch", "llamacpp", "ollama", "loop+fused"]  # not transformers
    entries = standings.ladder(contest(), list(RATES))
    assert "step" not in {e["name"] for e in standings.of_each_arithmetic(entries)}


def test_a_figure_has_the_baseline_where_intervals_do_not_tell_it_from_the_fastest():
    quick = {name: rate for name, rate in RATES.items() if name in ("loop", "step", "loop+bf16")}

    def shown(baseline, rate):
        made = [
            answer(name, block, slower=quick[name] / (quick | dict(step=rate))[name])
            for name in quick
            for block in range(8)
        ]
        entries = standings.ladder(made, list(quick))
        return [e["name"] for e in standings.of_each_arithmetic(entries, baseline)]

    assert shown("step", 59.9) == ["step", "loop+bf16"]
    assert shown("step", 50) == shown("", 59.9) == shown("absent", 59.9) == ["loop", "loop+bf16"]
    assert shown("loop", 59.9) == ["loop", "loop+bf16"]


def test_the_answer_has_the_files_size_and_the_lead_on_larger_files():
    names = [*RATES, "loop+fused"]
    made = contest(names)
    entries = standings.ladder(made, names)
    large = [e | dict(model="large") for e in table.under_ours(entries, made)]
    for entry in entries:
        entry["first"] = entry["first"].model_copy(update=dict(weights_bytes=97 * 10**6))
    said = table.answer(made, entries, large)
    assert " on 97 MB of weights; on large its lead is " in said
    assert re.search(r"on large its lead is [^;]* over llama\.cpp and [^;]* over Ollama\. ", said)


def test_leads_and_shares_on_a_larger_file():
    names = ["loop", "llamacpp", "loop+fused"]
    made = contest(names)
    small = table.under_ours(standings.ladder(made, names), made)
    more = dict(run="large", model="large")
    large = [answer(n, b, slower=10, bytes_per_token=1e6, **more) for n in (*names, "loop" + AGAIN) for b in range(4)]
    found = table.on_files(large, ours="none of these")
    over_loop = {e["name"]: e["over"].value for e in table.on_files(large, ours="loop")}
    assert over_loop["llamacpp"] < 1 < {e["name"]: e["over"].value for e in found}["llamacpp"]
    assert [e["name"] for e in found] == names  # not the baseline's twin
    (line,) = table.beside_files(small, found).splitlines()
    assert line.startswith("Our lead is smaller on large over 0 of 1 programs, by the intervals.")  # as large there
    assert "Shares of the limit here and there: loop " in line
    assert ", llama.cpp 3% and 1%, loop+fused " in line


def test_the_strongest_rival_is_said_before_ollama_and_never_left_out():
    def said(*names):
        made = contest((*names, "loop+fused"))
        return table.claim(made, standings.ladder(made, [*names, "loop+fused"])).sentence

    assert said("llamacpp", "ollama") == (
        "loop+fused decodes 2.00 times as fast as llama.cpp, the fastest peer, and 2.50 times as fast as Ollama."
    )
    assert said("ollama", "torch").endswith("loop+fused, decodes 2.50 times as fast as Ollama.")
    assert said("torch").startswith("Neither Ollama nor llama.cpp was measured")


def test_who_is_ours_and_who_the_rival():
    entries = standings.ladder(contest(), list(RATES))
    assert (table.ours(entries)["name"], table.rival(entries)["name"]) == ("loop", "llamacpp")
    assert [e["name"] for e in table.contenders(entries)] == ["loop", "llamacpp", "ollama"]
    other = standings.ladder(contest(("loop+bf16", "torch")), ["loop+bf16", "torch"])
    assert table.ours(other) is None  # bfloat16 is not float32
    assert [e["name"] for e in table.contenders(other)] == ["loop+bf16", "torch"]
    bits = standings.ladder(contest((*RATES, "loop+fused")), [*RATES, "loop+fused"])
    assert (table.ours(bits)["name"], standings.fastest(bits)["name"]) == ("loop", "loop+fused")
    assert [e["name"] for e in table.contenders(bits)] == ["loop+fused", "llamacpp", "loop", "ollama"]


def test_a_conversation_counts_whole():
    made = contest()
    talks = table.talks(made, list(RATES), "loop")
    assert talks["loop"]["ratio"].value == 1
    assert [len(turn) for turn in talks["torch"]["turns"]] == [4, 4, 4]
    seconds = sum(0.05 + (1 + k) / 60 for k in range(3))
    assert talks["loop"]["total"].median == pytest.approx(seconds, rel=0.02)
    twice = (sum(0.05 + (1 + k) / 30 for k in range(3))) / seconds
    assert talks["torch"]["ratio"].value == pytest.approx(twice, rel=0.02)
    early = (measure.CHAT, "torch", 0, 1)
    cut = [t.model_copy(update=dict(new_tokens=1 if (t.run, t.subject, t.block, t.prompt) == early else t.new_tokens))
           for t in made]  # fmt: skip
    assert table.talks(cut, ["torch"], "loop")["torch"]["total"].n == 3  # an answer that ended early is no turn
    void = [t.model_copy(update=dict(valid=False)) if t.subject == "torch" else t for t in made]
    assert table.talks(void, ["torch"], "loop") == {}


def test_footprints_take_what_stood_before_the_model_from_the_notes():
    notes = [dict(subject="loop", libraries_rss_bytes=3 * 10**8), dict(watch={})]
    found = footprints.table(contest(), notes, ["loop", "llamacpp", "absent"])
    assert [f["name"] for f in found] == ["loop", "llamacpp"]
    assert (found[0]["peak"], found[0]["libraries"], found[1]["libraries"]) == ([10**9], 3 * 10**8, None)


def test_the_frame_has_a_row_a_subject():
    made = contest()
    frame = show(table.under_ours(standings.ladder(made, list(RATES)), made), table.COLUMNS)
    assert list(frame.index) == list(RATES)
    assert frame.loc["transformers", "ours over it"] == pytest.approx(3, rel=0.02)
    assert frame.loc["loop", "verdict"] == ""
    assert frame.loc["transformers", "verdict"] == "faster"


FORMS = [("none", "float32"), ("gguf+fused", "gguf"), ("q8_0+gemv", "q8_0"), ("gguf-q4_1", "float32"),
         ("kv-int8", "float32")]  # fmt: skip


@pytest.mark.parametrize(("quantisation", "said"), FORMS)
def test_weights_are_named_by_their_form(quantisation, said):
    assert standings.weights(trial(quantisation=quantisation, dtype="float32")) == said
