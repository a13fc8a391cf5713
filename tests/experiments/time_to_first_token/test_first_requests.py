"""First requests of fresh processes, from made-up trials whose parts are known."""

import numpy as np
import pytest

from llama_lab.experiments.time_to_first_token import first_requests
from tests.experiments.time_to_first_token.test_table import AT, changed, everything, request


def test_a_cold_request_comes_apart_into_its_parts():
    step, torch = first_requests.cold(everything(), AT)
    assert (step["subject"], step["n"], step["tokens"]) == ("step exact", 3, AT)
    assert step["compile_ms"] == pytest.approx(1000)
    assert (
        step["compile_ms"] + step["once_ms"] + step["usual_ms"] == pytest.approx(step["median"]) == pytest.approx(1501)
    )
    assert step["usual_ms"] == step["warm_ms"]
    assert (step["load_s"], step["peak_rss_bytes"]) == (2, 10**9)
    assert torch["compile_ms"] == 0
    assert torch["once_ms"] == pytest.approx(140 - torch["warm_ms"])


def test_the_parts_of_a_cold_request_that_was_quicker_than_warm_ones_still_add_up():
    slow = [t for t in changed(everything(), "torch", AT, token_times_ns=[10**9, 2 * 10**9]) if t.subject == "torch"]
    (found,) = first_requests.cold(slow, AT)
    assert (found["warm_ms"], found["median"], found["usual_ms"], found["once_ms"]) == (1000, 140, 140, 0)


def test_one_cold_request_lifts_a_mean_above_every_warm_one():
    step, torch = first_requests.mixing(everything(), AT)
    # process by process
    assert step["mixed"] == pytest.approx(np.mean([1501, *(70 * (1 + 0.001 * np.array([0, 2, 4, 1])))]))
    assert step["mixed"] > step["largest"] > step["warm"]
    assert (step["n"], torch["n"]) == (6, 6)
    frame = first_requests.beside_the_original(everything(), AT)
    assert frame.loc["published: JIT-only", "mean over it"] == pytest.approx(76.04 / 59.25, abs=0.01)
    assert frame.loc["published: JIT-only", "mean without the cold row"] == 20.2
    assert frame.loc["here: step exact", "mean over it"] == pytest.approx(step["mixed"] / step["largest"], abs=0.01)
    assert frame.loc["published: JIT-only", "mean over that"] == pytest.approx(76.04 / 20.2, abs=0.01)
    assert frame.loc["here: step exact", "mean over that"] == pytest.approx(step["mixed"] / step["warm"], abs=0.01)
    assert first_requests.mixing(everything(blocks=3), AT) == []
    assert first_requests.mixing(everything(tail=50), AT)[1] == torch  # a loop of five has none of a tail's hundreds


def test_first_requests_are_told_by_length():
    more = [request("torch", 10, 0, "cold torch at 10", 90, phase="cold", load_ns=10**9)]
    assert first_requests.cold_lengths(everything() + more) == [10, AT]
    frame = first_requests.cold_frame(everything() + more, (10, AT))
    assert frame.index.tolist() == [(10, "torch"), (AT, "step exact"), (AT, "torch")]
    assert frame["cold s"].tolist() == [0.09, 1.501, 0.14]
