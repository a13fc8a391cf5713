"""Cold starts in real processes."""

import pytest

from llama_jax.bench import cold
from llama_jax.bench.protocol import Workload
from llama_jax.errors import UserError
from llama_jax.placement import parse
from tests.conftest import save_llama

WORK = Workload(((1, 2, 3),), new_tokens=4, length=4)
IDENTITY = dict(run="r", block=0, order=0)


@pytest.mark.slow
def test_a_cold_start_compiles_and_says_so(tmp_path):
    folder, _ = save_llama(tmp_path / "m")
    record = cold.start(str(folder), parse("step"), WORK, **IDENTITY)
    assert record.phase == "cold"
    assert record.valid
    assert record.compiled >= 2  # prefill and step
    assert min(record.trace_ns, record.lower_ns, record.backend_ns, record.load_ns, record.peak_rss_bytes) > 0
    assert record.token_times_ns[0] > record.backend_ns / 2  # the first token waits for the first compilation


@pytest.mark.slow
def test_a_failing_child_is_one_line(tmp_path):
    with pytest.raises(UserError, match="cold start of 'step' failed.*No such file") as caught:
        cold.start(str(tmp_path / "none.gguf"), parse("step"), WORK, **IDENTITY)
    assert "\n" not in str(caught.value)


def test_a_hanging_child_is_stopped():
    with pytest.raises(UserError, match="took more than"):
        cold.start("random:smollm2-135m", parse("step"), WORK, limit=0.2, **IDENTITY)
