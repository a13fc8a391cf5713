"""The figure of peak memory."""

from llama_lab.figures import memory


def test_memory_names_runtimes_as_their_makers_do():
    held = [
        dict(name=name, backend=backend, dtype="q4_1", peak=[peak], libraries=1e8, weights=1e8, kv=0)
        for name, backend, peak in (("llamacpp", "llama.cpp", 3e8), ("loop", "jax", 5e8), ("torch-int8", "torch", 9e8))
    ]
    figure = memory.footprint(held, None)
    title = " ".join(figure.get_suptitle().split())
    assert title == "One answer needs 300 MB under llama.cpp, 500 MB under loop and 900 MB under PyTorch-int8"
    key = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert {*key} == {"interpreter and libraries", "libraries + bytes of weights and cache"}
