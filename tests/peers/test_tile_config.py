"""The header that llama.cpp is compiled with: on processors with AMX it crashes without it."""

import platform
import shutil
import subprocess

import pytest

from llama_jax.plumbing import paths

HEADER = paths.ROOT / "llama_lab" / "peers" / "tile_config.h"
CODE = """
#include <immintrin.h>
struct alignas(64) config {
    unsigned char palette, start, reserved[14];
    unsigned short widths[16];
    unsigned char rows[16];
};
void configure() { config c = {}; c.palette = 1; c.widths[7] = 12345; c.rows[7] = 91; _tile_loadconfig(&c); }
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("level", ["-O0", "-O3"])
def test_all_bytes_of_a_tile_configuration_are_written(tmp_path, level):
    if platform.machine() != "x86_64":
        pytest.skip("AMX is x86's")
    source = tmp_path / "tiles.cpp"
    source.write_text(CODE)
    made = subprocess.run(
        ["c++", "-std=c++17", level, "-mamx-tile", "-include", HEADER, "-S", "-o", "-", source],
        capture_output=True,
        text=True,
    )
    if "mamx-tile" in made.stderr:
        pytest.skip("this compiler knows no AMX")
    assert made.returncode == 0, made.stderr
    written, _, _ = made.stdout.partition("ldtilecfg")
    assert written != made.stdout
    assert "$12345" in written
    assert "$91" in written


def test_every_build_of_llama_cpp_has_it():
    recipes = (paths.ROOT / "Makefile").read_text().split("\n\n")
    assert f"AMX := -include $(CURDIR)/{HEADER.relative_to(paths.ROOT)}" in "\n".join(recipes)
    for target in ("$(PEERS): requirements", "llama-server: "):
        (recipe,) = [recipe for recipe in recipes if recipe.startswith(target)]
        assert "$(AMX)" in recipe, target
