"""Memory that is free: the least of what machine, container and process still have; asked for large needs alone."""

import math
import re
import resource
from pathlib import Path

import jax
import numpy as np
import pytest

from llama_jax.plumbing import memory
from llama_jax.plumbing.errors import UserError

GB = 10**9


def test_a_need_that_is_not_free_is_one_line(monkeypatch):
    monkeypatch.setattr(memory, "free", lambda device: 2 * GB)
    memory.check(2 * GB, "Things", "have fewer")
    with pytest.raises(UserError, match=r"^Things need 3\.0 GB and 2\.0 GB are free; have fewer\.$"):
        memory.check(3 * GB, "Things", "have fewer")


def test_small_needs_ask_nobody(monkeypatch):
    monkeypatch.setattr(memory, "free", lambda device: pytest.fail("asked"))
    memory.check(memory.SMALL, "Things", "have fewer")


def test_the_least_of_all_limits_counts(monkeypatch):
    for name in ("machine", "container", "process"):
        monkeypatch.setattr(memory, f"of_the_{name}", lambda: 5 * GB)
    for name in ("machine", "container", "process"):
        with monkeypatch.context() as patched:
            patched.setattr(memory, f"of_the_{name}", lambda: GB)
            assert memory.free() == GB


class Device:
    """A device that counts its own memory, or, given nothing, leaves that to its host."""

    def __init__(self, **counted):
        self.counted = counted

    def memory_stats(self):
        return self.counted or None


def test_a_device_that_counts_its_own_memory_is_asked(monkeypatch):
    full, empty = (Device(bytes_limit=5 * GB, bytes_in_use=used * GB) for used in (4, 2))
    monkeypatch.setattr(jax, "local_devices", lambda: [full, empty])
    monkeypatch.setattr(memory, "of_the_machine", lambda: 2 * GB)
    assert [memory.free(device) for device in (None, empty, full)] == [GB, 3 * GB, GB]
    assert memory.free(Device()) <= 2 * GB
    memory.check(3 * GB, "Things", "have fewer", empty)
    for device in (None, full):
        with pytest.raises(UserError, match=r"1\.0 GB are free"):
            memory.check(3 * GB, "Things", "have fewer", device)


def test_the_limit_of_a_container(tmp_path):
    assert memory.of_the_container(tmp_path) == math.inf
    (tmp_path / "memory.current").write_text(f"{2 * GB}\n")
    (tmp_path / "memory.stat").write_text(f"anon {GB}\nfile {GB}\ninactive_file {GB}\n")
    for limit, left in (("max", math.inf), (str(3 * GB), 2 * GB)):
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        assert memory.of_the_container(tmp_path) == left


def test_the_limit_of_the_process(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY,) * 2)
    assert memory.of_the_process() == math.inf
    monkeypatch.setattr(resource, "getrlimit", lambda which: (2**50, 2**50))
    assert 0 < memory.of_the_process() < 2**50


def test_here_some_memory_is_free():
    assert 0 < memory.free() < math.inf


def flags_of(address):
    """What the kernel was told of the memory at an address: `VmFlags` of Linux's /proc/self/smaps."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match("[0-9a-f]+-[0-9a-f]+ ", line):
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            inside = start <= address < end
        elif inside and line.startswith("VmFlags"):
            return line.split()[1:]
    return []


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux says it")
def test_a_short_answer_has_ordinary_pages():
    size = 16 * memory.HUGE

    def flags():
        room = memory.taken(np.zeros(size, np.uint8))
        assert not room.any()
        return flags_of(room.ctypes.data + size // 2)

    with memory.for_a_short_answer():
        assert "nh" in flags()
        memory.taken(np.zeros(3, np.uint8))  # less than a page
    assert "nh" not in flags()
