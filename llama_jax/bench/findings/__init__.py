"""One-sentence answers, computed from records. What the data do not decide, the sentence does not claim."""

__all__ = []  # fmt: skip
