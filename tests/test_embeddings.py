"""The embedding table is looked up as it is stored."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from llama_jax.embeddings import Embedding, embed

ROWS, COLUMNS = 512, 64


def looped(table, ids):
    """Eight lookups in a loop, each of what the last one said."""

    def body(state):
        made, ids = state
        x = embed(Embedding(table), ids, ids).astype(jnp.float32)
        return made + 1, (ids + jnp.abs(x.sum()).astype(jnp.int32) + 1) % ROWS

    return lax.while_loop(lambda state: state[0] < 8, body, (0, ids))[1]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_a_loop_keeps_no_copy_of_the_table(dtype):
    shape = jax.ShapeDtypeStruct((ROWS, COLUMNS), dtype)
    compiled = jax.jit(looped).lower(shape, jnp.zeros((1, 1), jnp.int32)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < ROWS * COLUMNS


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_rows_are_the_tables(dtype):
    table = jax.random.normal(jax.random.key(0), (ROWS, COLUMNS)).astype(dtype)
    ids = jnp.array([[3, 0, ROWS - 1]])
    for function in (embed, jax.jit(embed)):
        np.testing.assert_array_equal(function(Embedding(table), ids, ids)[0], np.asarray(table)[np.asarray(ids[0])])
