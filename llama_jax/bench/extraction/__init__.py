"""How fast activations get onto the disk: what is measured (`plan`), the ways of doing it (`rungs`, `pipeline`), the passes and their
gate (`passes`, `gate`), what the rows say (`table`), and what a store is good for (`probing`)."""

from llama_jax.experiments.activation_extraction import gate, measure, pipeline, plan, probing, rungs, table

__all__ = ["gate", "passes", "pipeline", "plan", "probing", "rungs", "table"]
