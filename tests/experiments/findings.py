"""What every finding is held to, wherever a test asks for one: a first sentence in plain words."""

import importlib
import importlib.util
import pkgutil

import pytest

from llama_lab import experiments
from llama_lab.bench import wording

FINDINGS = {  # what notebooks say last, by experiment
    "activation_extraction": "extraction",
    "compile_time": "compiling",
    "compiled_kernels": "compiled_kernels",
    "fewer_bits": "fewer_bits",
    "gpu": "gpu",
    "growth": "growth",
    "headline": "headline",
    "honest_measurement": "claims",
    "host_loop": "host_loop",
    "jit_placement": "placements",
    "kv_cache": "kv_cache",
    "ollama": "versus",
    "past_one_token_a_pass": "past_one",
    "shapes_and_recompilation": "shapes",
    "text_generation": "arrivals",
    "time_to_first_token": "first_token",
    "upgrading_jax": "upgrading",
    "what_may_be_jitted": "token",
    "what_serving_needs": "serving",
    "your_own_placement": "own_placement",
}


def with_findings():
    return [m.name for m in pkgutil.iter_modules(experiments.__path__) if module_of(m.name)]


def module_of(name):
    found = f"llama_lab.experiments.{name}.finding"
    return importlib.import_module(found) if importlib.util.find_spec(found) else None


@pytest.fixture(autouse=True)
def plain_findings(monkeypatch):
    """Each finding that a test asks for is looked at."""

    def checked(say):
        def saying(*args, **kwargs):
            said = say(*args, **kwargs)
            assert not wording.complaints(said), (wording.complaints(said), said)
            return said

        return saying

    for name, function in FINDINGS.items():
        module = module_of(name)
        monkeypatch.setattr(module, function, checked(getattr(module, function)))
