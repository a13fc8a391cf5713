"""Figures: one style, one `save`, one function a chart. Every number drawn is computed from records."""

from llama_jax.figures.compiling import compile_sizes, compile_stages, compile_starts, compile_surprises, paid_back
from llama_jax.figures.measurement import first_tokens, speed_ups, two_ways, validation
from llama_jax.figures.placements import arrivals, break_even, compilation, latency, pipelines, spread_labels, throughput
from llama_jax.figures.style import COLOURS, PALETTE, colour, conclude, display, read_manifest, save, update_manifest

__all__ = ["COLOURS", "PALETTE", "arrivals", "break_even", "colour", "compilation", "compile_sizes", "compile_stages", "compile_starts",
           "compile_surprises", "conclude", "display", "first_tokens", "latency", "paid_back", "pipelines", "read_manifest", "save",
           "speed_ups", "spread_labels", "throughput", "two_ways", "update_manifest", "validation"]  # fmt: skip
