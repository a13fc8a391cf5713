"""The browser is a real one, and its absence is told."""

import subprocess
import sys

import pytest

from llama_jax.plumbing import paths
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


AFTERWARDS = """import asyncio

def test_an_event_loop_runs():
    asyncio.run(asyncio.sleep(0))
"""


@pytest.mark.slow
def test_another_packages_tests_may_run_an_event_loop_after_it(chromium, tmp_path):
    (tmp_path / "test_afterwards.py").write_text(AFTERWARDS)
    tests = f"{__file__}::{test_it_runs_a_page.__name__}", tmp_path / "test_afterwards.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, tests)]
    done = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout[:2]) == (0, ".."), done.stdout
