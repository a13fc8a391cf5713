"""Figures: one style, one `save`, one function per chart. Every number drawn is computed from records."""

from llama_lab.figures.memory import footprint as footprint
from llama_lab.figures.style import COLOURS as COLOURS
from llama_lab.figures.style import PALETTE as PALETTE
from llama_lab.figures.style import Page as Page
from llama_lab.figures.style import colour as colour
from llama_lab.figures.style import conclude as conclude
from llama_lab.figures.style import display as display
from llama_lab.figures.style import glance as glance
from llama_lab.figures.style import headline as headline
from llama_lab.figures.style import model_label as model_label
from llama_lab.figures.style import read_manifest as read_manifest
from llama_lab.figures.style import save as save
from llama_lab.figures.style import update_manifest as update_manifest
