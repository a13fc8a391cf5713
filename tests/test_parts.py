"""The slow tests in parts, as CI runs them: together they are all, and none says which it is by chance."""

import pytest

pytest_plugins = ["pytester"]
MARKED = """
import pytest

@pytest.mark.slow
@pytest.mark.parametrize("i", [1, 2])
def test_one_file_stays_together(i):
    pass

def test_fast():
    pass
"""
ALWAYS = """
import pytest

@pytest.mark.slow("always")
def test_always():
    pass
"""


@pytest.fixture
def suite(pytester, request):
    pytester.makeini("[pytest]\nmarkers = slow")
    pytester.makeconftest((request.config.rootpath / "tests" / "conftest.py").read_text())
    pytester.makepyfile(**{f"test_{name}": MARKED for name in "abcde"}, test_always=ALWAYS)

    def run(*options):
        """What ran, by file and name."""
        done = pytester.runpytest_inprocess("-m", "slow", "-v", "-p", "no:cacheprovider", *options)
        return done, sorted(line.partition(" ")[0] for line in done.outlines if " PASSED" in line)

    return run


def test_parts_are_all_and_share_only_what_always_runs(suite):
    _, whole = suite()
    assert len(whole) == 11
    parts = [suite("--part", f"{k}/3")[1] for k in (1, 2, 3)]
    always = "test_always.py::test_always"
    assert all(always in part for part in parts)
    assert sorted([one for part in parts for one in part if one != always] + [always]) == whole
    assert all(
        {len([one for one in part if one.startswith(f"test_{name}.py")]) for name in "abcde"} <= {0, 2}
        for part in parts
    )


@pytest.mark.parametrize("part", ["4/3", "x"])
def test_a_part_that_is_none_is_one_line(suite, part):
    done, ran = suite("--part", part)
    assert ran == []
    assert f"--part is {part}; it must be k/n, such as 1/3." in "\n".join(done.errlines)
    assert "Traceback" not in "\n".join(done.errlines)
