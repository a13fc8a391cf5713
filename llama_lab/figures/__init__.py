"""Figures: one style, one `save`, one function a chart. Every number drawn is computed from records."""

from llama_lab.figures.labels import spread_labels
from llama_lab.figures.memory import footprint
from llama_lab.figures.page import Page
from llama_lab.figures.style import (
    COLOURS,
    PALETTE,
    colour,
    conclude,
    display,
    glance,
    headline,
    model_label,
    read_manifest,
    save,
    update_manifest,
)

__all__ = [
    "COLOURS",
    "PALETTE",
    "Page",
    "colour",
    "conclude",
    "display",
    "footprint",
    "glance",
    "headline",
    "model_label",
    "read_manifest",
    "save",
    "spread_labels",
    "update_manifest",
]
