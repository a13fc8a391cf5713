"""One model over several devices, of one process or several, for models larger than a device: weights are split by
kind, batches over "data".

    mesh(2, 4): 8 devices                    data: rows of the batch, each part with all of the weights
                                             tensor: heads, hidden units and vocabulary, each part with all of the batch

What is split follows Megatron-LM (Shoeybi et al. 2019, https://arxiv.org/abs/1909.08053): products that widen by their
rows, those that narrow again by their columns. XLA's partitioner adds the communication (Xu et al. 2021,
https://arxiv.org/abs/2105.04663).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from llama_jax.model import Model
from llama_jax.plumbing.errors import UserError

T = TypeVar("T")
JOIN = 120  # seconds that all processes have to meet
HEARTBEAT = 30  # seconds without one, and a process counts as dead: the others end
# (part of the model, its weight): the axis of the weight that goes over "tensor"; what is not here is on every device
SPLIT = {
    ("embeddings", "weight"): 0,
    ("head", "weight"): 0,
    ("attention", "qkv"): 0,
    ("attention", "qkv_bias"): 0,
    ("attention", "o"): 1,
    ("ffn", "gate_up"): 0,
    ("ffn", "gate_up_bias"): 0,
    ("ffn", "down"): 1,
}


def mesh(data: int, tensor: int) -> Mesh:
    """All devices of all processes as a grid with the axes "data" and "tensor". A row, which exchanges values in each
    layer, lies within a process if possible. Raises UserError for another number of devices."""
    if min(data, tensor) < 1 or data * tensor != len(jax.devices()):
        raise UserError(
            f"A mesh of {data} x {tensor} needs {data * tensor} devices; JAX sees {len(jax.devices())}, processes:"
            f" {jax.process_count()}. Choose a mesh of that many, or limit what is visible (CUDA_VISIBLE_DEVICES,"
            " JAX_NUM_CPU_DEVICES)."
        )
    return jax.make_mesh((data, tensor), ("data", "tensor"), axis_types=(AxisType.Auto, AxisType.Auto))


def parse(text: str) -> Mesh:
    """The mesh that a command line writes as DATAxTENSOR, such as 2x4. Raises UserError."""
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise UserError(f"--mesh {text!r}: write DATAxTENSOR, two whole numbers such as 2x4.")
    return mesh(int(parts[0]), int(parts[1]))


def partition(path, weight, size: int) -> PartitionSpec:
    """How one weight is split over `size` devices; not at all if its axis cannot be split evenly."""
    axis = SPLIT.get(tuple(key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey))[-2:])
    if axis is None or weight.shape[axis] % size:
        return PartitionSpec()
    return PartitionSpec(*[None] * axis, "tensor")


def shard(params: Model, mesh: Mesh) -> Model:
    """The same weights, each device with its own part of them. Each process puts only what its devices hold. params: on
    the host (`host()`), so that no device ever holds a whole one of those that are split."""

    def put(path, weight):
        return spread(np.asarray(weight), mesh, partition(path, weight, mesh.shape["tensor"]))

    return jax.tree_util.tree_map_with_path(put, params)


def spread(values: np.ndarray, mesh: Mesh, spec: PartitionSpec) -> jax.Array:
    """A host array that every process has, as one array over the mesh."""
    return jax.make_array_from_callback(values.shape, NamedSharding(mesh, spec), lambda index: values[index])


def check_batch(batch: tuple[int, int], mesh: Mesh) -> None:
    """Raises UserError for a batch whose rows cannot be shared out evenly."""
    if batch[0] % mesh.shape["data"]:
        raise UserError(
            f"A batch of {batch[0]} rows cannot be shared evenly by {mesh.shape['data']} parts of the mesh;"
            f" choose a multiple of {mesh.shape['data']}."
        )


def host() -> jax.Device:
    """The host's processor as a device, which loads the weights before `shard` spreads them. Raises UserError if
    JAX_PLATFORMS excludes it."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise UserError(
            "JAX may not use the processor here, where weights are loaded before they are spread; add it: "
            f"JAX_PLATFORMS={jax.config.jax_platforms},cpu"
        ) from error


def join(seconds: int = JOIN) -> None:
    """Connect to the other processes that a launcher known to `jax.distributed.initialize` has started. Must come
    before JAX computes anything.

    Raises UserError if no launcher is detected. If the others do not answer in time, the process ends with one line and
    exit code 2, because JAX's runtime would end it with a core dump.
    """
    jax.config.update("jax_enable_preemption_service", False)  # it would keep SIGTERM from ending the process

    def give_up() -> None:
        print(
            f"error: The other processes of the mesh did not answer within {seconds} s; start all of them, and check"
            " that they reach each other.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(2)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        jax.distributed.initialize(initialization_timeout=2 * seconds, heartbeat_timeout_seconds=HEARTBEAT)
        jax.devices()  # here the processes tell each other their devices
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            "No launcher is detected here; start every process of a mesh by srun, mpirun or on a TPU pod"
            f" ({type(error).__name__}: {error})."
        ) from error
    except RuntimeError as error:
        raise UserError(f"JAX could not start as one of several processes: {str(error).splitlines()[0]}") from error
    finally:
        timer.cancel()


def agreed(value: T) -> T:
    """The first process's value, in all of them: JSON values. All must call it."""
    if jax.process_count() == 1:
        return value
    content = np.frombuffer(json.dumps(value).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(content.size)))
    received = multihost_utils.broadcast_one_to_all(np.resize(content, size))
    return json.loads(received.astype(np.uint8).tobytes())


@contextlib.contextmanager
def leaving() -> Iterator[None]:
    """A process that fails while others wait for it exits at once: an orderly exit would first wait for them."""
    try:
        yield
    except BaseException as error:
        if not jax.distributed.is_initialized() or isinstance(error, SystemExit):
            raise
        if isinstance(error, UserError):
            print(f"error: {error}", file=sys.stderr, flush=True)
        elif not isinstance(error, KeyboardInterrupt):
            traceback.print_exc()
        sys.stdout.flush()
        os._exit({UserError: 2, KeyboardInterrupt: 130}.get(type(error), 1))
