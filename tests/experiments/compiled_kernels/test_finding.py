"""What compiled kernels gain, in words, of made-up times whose answer is known."""

from llama_lab.bench.statistics import Ratio
from llama_lab.experiments.compiled_kernels import chart, commands, finding, rows, scaling, sizes
from llama_lab.experiments.compiled_kernels.rows import BATCH
from tests.experiments.compiled_kernels.test_tables import SIZED, answers, given, on_file, parts, passes, points


def test_the_lead_by_size_by_context_and_by_instructions():
    made = SIZED + on_file(dict(loop=30, llamacpp=20, openvino=10), "large/q4_0", megabytes=1000)
    table = sizes.table(made)
    decode = [e for e in sizes.ours(table) if e["what"] == sizes.DECODE]
    said = finding.halved(decode)
    assert said.startswith("The lead halves at none of these sizes: it is 100% on the smallest file, and least (50%)")
    slow = on_file(dict(loop=9, llamacpp=10), "huge/q4_0", megabytes=2000)
    said = finding.halved(sizes.ours(sizes.table(slow + made))[:3])
    assert said.startswith("The lead halves by 2,000 MB per token: it is 100% on the smallest file, -10% there")
    assert said.endswith("least (-10%) at 2,000 MB per token")
    said = finding.least_and_most(table)
    assert said.index("llama.cpp, large/q4_0, 1,000 MB") < said.index("OpenVINO, small/q4_0, 100 MB")
    lost = finding.lost(table)
    assert lost.startswith("slower than the best other runtime in 1 of 3 cases (at worst 0.")
    assert lost.endswith(", reading 50 tokens, small/q4_0, llama.cpp), undecided in 0")
    assert finding.lost(decode) == "slower than the best other runtime in 0 of 2 cases, undecided in 0"
    frame = finding.beside_best(table)
    assert frame.loc["small/q4_0", "at context 64"].endswith("openvino")
    assert list(frame) == ["at context 64", "reading 50 tokens"]
    read = dict(prompts=dict(loop=900, llamacpp=1000))
    both = on_file(dict(loop=300, llamacpp=100), "a/avx2", **read)
    both += on_file(dict(loop=500, llamacpp=100), "a/avx512vnni", **read)
    decoding, reading = finding.instructions(sizes.table(both + SIZED)).splitlines()
    assert decoding == "In decoding the ratio is 40% smaller with avx2; in 1 of 1 cases the intervals are apart (40%)."
    assert reading == "In reading prompts the ratio is 0% smaller with avx2; in 0 of 1 cases the intervals are apart."
    grown = {"context": scaling.axis_of(points() + points("llamacpp", {"256": 20, "4096": 20}), "context")}
    assert finding.apart(grown, "loop", "llamacpp") == "loop over llama.cpp by context, 256: 3.00x, 4096: 2.00x"
    alike = scaling.axis_of(points() + points("llamacpp", {"256": 20, "4096": 20}), "context")
    said = finding.loses_most(alike)
    assert said == "loop loses most, by medians: from context 256 to 4096 it keeps 67% of its rate, llama.cpp 100%"
    assert finding.loses_most(scaling.axis_of(points(), "context")) == ""
    threads = {name: some[::-1] for name, some in grown["context"].items()}
    said = finding.by_threads(threads)
    assert said == "median rate with 256 threads over that with 4096: loop 1.50x, llama.cpp 1.00x (n = 3)"
    assert finding.by_threads(scaling.axis_of([], "threads")) == ""
    said = finding.stays(grown["context"], dict(loop="jax", llamacpp="llama.cpp"))
    assert said == "loop's median rates are 2.00 to 3.00 times llama.cpp's from 256 to 4,096 tokens (n = 3)"
    assert finding.stays(grown["context"], dict(loop="jax", llamacpp="jax")) == ""
    for nothing in (finding.least_and_most, finding.instructions):
        assert nothing([]) == ""
    assert finding.beside_best([]).empty
    assert "one size alone" in finding.halved([])


def test_an_interval_that_nearly_ends_at_one_has_a_third_digit():
    above, below = Ratio(1.64, 1.0018, 2.67, 5), Ratio(1.15, 0.9957, 1.32, 5)
    assert finding.to_tell_from_one(above) == "1.64x [1.002, 2.670]"
    assert finding.to_tell_from_one(below) == "1.15x [0.996, 1.320]"
    for ratio in (Ratio(1.0, 1.0, 1.0, 5), Ratio(1.5, 1.2, 1.9, 5)):
        assert finding.to_tell_from_one(ratio) == ratio.words
    (axes,) = chart.over_best(sizes.table(SIZED), "decode").axes
    before = len(axes.texts)
    for ratio in (above, below, Ratio(1.5, 1.2, 1.9, 5)):
        chart.ends_near_one(axes, ratio, 0, "red")
    assert [text.get_text() for text in axes.texts[before:]] == ["from 1.002", "from 0.996"]


def test_the_largest_part_of_a_token_is_named():
    (entry,) = parts(answers())
    said = finding.largest_part([entry, entry | dict(name="loop+fused", layers=1.2, total=2.0)])
    start = f"the layers, apart from attention over the cache, take 3.0 of a token's {entry['total']:.1f} ms under loop"
    assert said == f"{start}, and 1.2 of 2.0 ms under loop+fused"
    assert finding.largest_part([]) == ""


def test_parts_of_a_token_under_the_last_placement_and_the_first():
    first = dict(name="loop", layers=18.2, attention=4.7, head=5.3, layers_low=15, attention_low=1.7, head_low=3.1)
    between = first | dict(name="loop+bf16", head_low=-1)
    last = first | dict(name="loop+fused", layers=2.1, attention=1.2, head=0.7)
    assert finding.first_and_last([first, between, last]) == (
        "from loop to loop+fused a token's time goes from 18.2 to 2.1 ms in the layers, "
        "from 4.7 to 1.2 in attention over the cache and from 5.3 to 0.7 in the head"
    )
    said = finding.first_and_last([first | dict(layers_low=-1), last | dict(head_low=0)])
    assert said == "from loop to loop+fused a token's time goes from 4.7 to 1.2 ms in attention over the cache"
    hidden = dict.fromkeys(("layers_low", "attention_low", "head_low"), -1)
    assert finding.first_and_last([first, last | hidden]) == ""


def test_what_rows_cost_in_words():
    found = rows.table(
        passes() + passes(costs={1: 1.0, 4: 1.5, 8: 2.2}, context=512) + passes(costs={8: 2.5}, kind=BATCH)
    )
    assert finding.of_rows(found) == (
        "loop+fused, over one row: 4 rows of a sequence 1.20x to 1.50x, 8 rows of a sequence 2.00x to 2.20x, "
        "8 rows of a batch 2.50x"
    )
    assert finding.of_rows([]) == ""
    theirs = [e | dict(engine="llamacpp") for e in found if e["context"] == 512]
    assert finding.together(theirs + found) == (
        "a pass over 8 tokens takes 2.2 times as long as over one in llama.cpp, 2.0 to 2.5 times in loop+fused"
    )
    assert finding.together([]) == ""


def test_the_time_of_a_command_is_said_in_words():
    made = [given("step", 36, "first"), given(commands.PEER, 0.7, "first")]
    for tokens, mine in ((1, 3), (32, 4)):
        for block in range(5):
            slow = 1 + block / 100
            made += [
                given(who, s * slow, tokens=tokens, block=block) for who, s in (("step", mine), (commands.PEER, 2))
            ]
    said = finding.command(commands.table(made)).splitlines()
    assert [line.partition(" [")[0] for line in said[:2]] == [
        "Time of our warm command over llama.cpp's, to the first token: 1.50x",
        "Time of our warm command over llama.cpp's, for 32 tokens: 2.00x",
    ]
    assert said[2] == "Ours is shown to be the faster one for none of these."
    assert said[3].endswith("once for each version: 36.0 s against 0.7 s on small.")
    assert finding.command([]) == ""
    quick = [
        given(who, s * (1 + b / 100), tokens=32, block=b)
        for who, s in (("step", 1), (commands.PEER, 2))
        for b in range(5)
    ]
    assert finding.command(commands.table(quick)).endswith("the faster one for 32 tokens of small.")
