"""Charts of the host strategies say what the trials say, and are the same bytes twice."""

import pytest

from llama_jax import figures
from llama_jax.bench import hostloop
from tests.bench.test_hostloop import measured_models
from tests.test_figures import META, words


@pytest.fixture(scope="module")
def panels():
    made = measured_models()
    return [(m, hostloop.of(made, m), hostloop.table(made, m)) for m in ("random:small", "m")]


@pytest.mark.parametrize("chart", ["strategies", "dispatch", "load"])
def test_each_chart_draws_the_same_bytes_twice(tmp_path, chart, panels):
    points = hostloop.by_size(measured_models())
    draw = {
        "strategies": lambda: figures.host_strategies(panels),
        "dispatch": lambda: figures.dispatch_and_device(points, hostloop.crossover(points)),
        "load": lambda: figures.host_load(panels, 2),
    }[chart]
    files = [figures.save(draw(), "x", "nb", META, {}, "alt", tmp_path / str(i)) for i in range(2)]
    for kind in ("svg", "png"):
        assert files[0][kind].read_bytes() == files[1][kind].read_bytes()


def test_rates_say_ratio_verdict_and_limit(panels):
    drawn = words(figures.host_strategies(panels))
    for text in ("baseline, n = 6", "equal within 2 %, n = 6", "faster, n = 6", "memory-bandwidth limit 1,000 tokens/s"):
        assert text in drawn
    void = [t.model_copy(update=dict(valid=False, reason="wrong: token 0")) if t.subject == "loop" else t for t in panels[1][1]]
    assert "no valid trial: wrong: token 0" in words(figures.host_strategies([("m", void, hostloop.table(void, "m"))]))


def test_the_crossing_is_marked_only_where_there_is_one():
    points = hostloop.by_size(measured_models())
    assert "waiting overtakes dispatch" in words(figures.dispatch_and_device(points, hostloop.crossover(points)))
    assert "waiting overtakes dispatch" not in words(figures.dispatch_and_device(points[1:], None))


def test_the_load_names_the_cores_there_are(panels):
    drawn = words(figures.host_load(panels, 7))
    assert "all 7 cores" in drawn
    assert "1.50, n = 6" in drawn
