"""Causes: JAX's own messages, real ones first, shortened and condensed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llama_jax.sampling import Sampler
from llama_lab.bench import Guard, compile_causes

pytestmark = pytest.mark.usefixtures("compiling")

SHAPE = (
    "TRACING CACHE MISS at /home/me/llama_jax/generate.py:150:27 (decode): for one_step defined at"
    " /home/me/llama_jax/transforms.py"
    " all previously seen cache keys differ. For the closest previous key: different input types:"
    + "".join(f" * at carry.cache.entries[{i}][0], now f32[1,3,56,64] and before f32[1,3,43,64]" for i in range(30))
)
STATIC = (
    "TRACING CACHE MISS at /home/me/llama_jax/generate.py:130:19 (prefill): for first defined at"
    " /home/me/llama_jax/transforms.py:101"
    " all previously seen cache keys differ. For the closest previous key: different input pytree: * at"
    " input path [0][5], now <class"
    " 'jax._src.tree_util.Static'> with pytree metadata Static(val=56) and before <class"
    " 'jax._src.tree_util.Static'> with pytree"
    " metadata Static(val=43), so the pytree node metadata does not match"
)
HELPER = "TRACING CACHE MISS at /home/me/llama_jax/sampling.py:130:11 (greedy): never seen function: <unknown> id={}"


def program(x, settings, keep=0):
    return jnp.argmax(x * settings["scale"]) + keep


def cause(*calls):
    """What the last of some calls (arguments, keyword arguments) of one fresh jitted function compiled for."""
    f = jax.jit(lambda x, settings, sampler=None, keep=0: program(x, settings, keep), static_argnums=3)
    for args in calls:
        with Guard(explain=True) as guard:
            f(*args)
    return compile_causes.shorten(guard.cause)


def array(n, dtype=np.float32):
    return jnp.asarray(np.ones(n, dtype))


ONE = {"scale": np.float32(2)}


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ([(array(7), ONE)], compile_causes.FIRST),
        ([(array(7), ONE), (array(9), ONE)], "shape: f32[9], before f32[7]"),
        ([(array(7), ONE), (array(7, np.int32), ONE)], "type: i32[7], before f32[7]"),
        ([(array(7), ONE), (array(7), ONE | {"more": np.float32(1)})], "another structure of the arguments"),
        ([(array(7), ONE, None, 1), (array(7), ONE, None, 2)], "static argument: 2, before 1"),
        (
            [(array(7), ONE, Sampler()), (array(7), ONE, Sampler(temperature=0.5, top_k=4))],
            "static argument: temperature 0.5, top-k 4, before greedy",
        ),
        ([(array(7), ONE), (jax.device_put(array(7), jax.devices()[0]), ONE)], compile_causes.COMMITTED),
        ([(array(7), ONE), (array(7), ONE)], ""),
    ],
    ids=["first call", "shape", "dtype", "tree", "static value", "static settings", "committed", "known"],
)
def test_what_jax_says_today_is_understood(calls, words):
    assert compile_causes.condense(cause(*calls)) == words


def test_a_helper_that_lowering_makes_does_not_hide_that_nothing_was_retraced():
    """argmax makes a new helper whenever it is lowered; JAX logs it, although the program itself is not traced
    again."""
    f, x = jax.jit(lambda x: jnp.argmax(x * 3)), array(11)
    f(x)
    with Guard(explain=True) as guard:
        f(jax.device_put(x, jax.devices()[0]))
    assert guard.explanations.messages
    assert (guard.count("trace"), guard.count("lower")) == (0, 1)
    assert compile_causes.condense(guard.cause) == compile_causes.COMMITTED


SEVERAL = compile_causes.SEPARATOR.join([STATIC, HELPER.format(1), SHAPE, HELPER.format(2), SHAPE])


def test_shortened_is_the_same_on_every_machine_and_in_every_run():
    here = compile_causes.shorten(SEVERAL)
    elsewhere = SEVERAL.replace("/home/me/", "/srv/x/").replace("id=1", "id=77")
    assert here == compile_causes.shorten(elsewhere) == compile_causes.shorten(here)
    assert "/home" not in here
    assert "llama_jax/generate.py:150:27" in here
    assert here.count("* at") == 1 + compile_causes.KEPT
    assert "… and 28 more" in here
    assert "<unknown> (2 times)" in here
    assert compile_causes.shorten("") == ""


def test_condensed_says_each_class_once_and_leaves_helpers_out():
    words = "static argument: 56, before 43; shape: f32[1,3,56,64], before f32[1,3,43,64]"
    assert compile_causes.condense(SEVERAL) == compile_causes.condense(compile_causes.shorten(SEVERAL)) == words
    assert compile_causes.kinds(words) == "static argument; shape"
    assert compile_causes.kinds(compile_causes.COMMITTED) == compile_causes.COMMITTED
    assert compile_causes.condense(HELPER.format(1)) == compile_causes.FIRST
    assert compile_causes.condense("a message of another version of JAX") == "a message of another version of JAX"
    quoted = compile_causes.quote(compile_causes.shorten(compile_causes.SEPARATOR.join([HELPER.format(1), SHAPE])))
    assert quoted.startswith("(decode): different input types: * at carry.cache.entries[0][0], now f32[1,3,56,64]")
    assert compile_causes.quote(HELPER.format(1)) == "(greedy): never seen function: <unknown> id=1"
