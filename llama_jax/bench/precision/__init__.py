"""Speed against quality: what is measured beside what (`contest`), texts read under each arithmetic (`reading`), how rates go with
context, threads and size (`scaling`), first tokens (`first`), where a token's time goes (`where`), what the rows say (`table`), which
goals are reached (`goals`).
"""

from llama_jax.experiments.precision_and_kernels import goals, measure, reading, scaling, table, where
from llama_jax.experiments.time_to_first_token import same_file

__all__ = ["contest", "first", "goals", "reading", "scaling", "table", "where"]
