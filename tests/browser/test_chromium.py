"""The browser is a real one, and its absence is told."""

import pytest

from tests.browser import conftest

pytestmark = pytest.mark.browser


def test_it_runs_a_page(chromium):
    page = chromium.new_page()
    page.set_content("<p id=p></p><script>document.getElementById('p').textContent = 6 * 7</script>")
    assert page.inner_text("#p") == "42"


@pytest.mark.parametrize(("required", "outcome"), [("", pytest.skip.Exception), ("required", pytest.fail.Exception)])
def test_without_chromium_a_test_is_skipped_or_fails_where_it_is_required(monkeypatch, required, outcome):
    monkeypatch.setattr(conftest, "NAMES", ("no-such-browser",))
    monkeypatch.setenv("LLAMA_JAX_BROWSER", required)
    with pytest.raises(outcome, match="apt-get install chromium"):
        conftest.executable()
