import pytest

import llama_jax as ll
from llama_jax.plumbing.errors import UserError


def test_none_alone_is_replaced():
    for value in (0, False, "", []):
        assert ll.tools.default_arg(value, 5, default_factory=lambda: 1 / 0) is value
    assert ll.tools.default_arg(None, 0, default_factory=lambda: 1 / 0) == 0
    assert ll.tools.default_arg(None, default_factory=list) == []
    assert ll.tools.default_arg(None) is None


def test_a_prompt_loses_the_indentation_of_its_lines():
    n = 3
    made = ll.tools.prompt(
        f"""

        Name {n} colours:
          - one a line

        and no more.
        """
    )
    assert made == "Name 3 colours:\n  - one a line\n\nand no more.\n"
    assert ll.tools.prompt("    plain") == "plain"
    with pytest.raises(UserError, match="The prompt is 3"):
        ll.tools.prompt(3)
