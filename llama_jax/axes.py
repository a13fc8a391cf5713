"""The shape annotations of the model: jaxtyping's, where it is installed.

Annotations are never evaluated here (`from __future__ import annotations`), only by tests that check shapes. So a
machine that only measures speed does not need the library.
"""

from __future__ import annotations

try:
    from jaxtyping import Array, Bool, Float, Int
except ImportError:
    from jax import Array

    Bool = Float = Int = Array

__all__ = ["Array", "Bool", "Float", "Int"]
