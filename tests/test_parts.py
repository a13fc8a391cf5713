"""The slow tests in parts, as CI runs them: together they are all, and none runs in a part by chance."""

from itertools import chain
from types import SimpleNamespace

import pytest

from tests import conftest

pytest_plugins = ["pytester"]


def item(file, slow=True, always=False):
    mark = SimpleNamespace(args=("always",) if always else ())
    return SimpleNamespace(path=file, always=always or not slow, get_closest_marker=lambda name: mark if slow else None)


def test_parts_are_all_and_share_only_what_always_runs():
    items = [item(file) for file in "abcde" for _ in range(2)] + [item("f", always=True), item("a", slow=False)]
    parts = [conftest.part_of(items, k, 3) for k in (1, 2, 3)]
    for kept, out in parts:
        assert sorted(map(id, kept + out)) == sorted(map(id, items))
        assert all(test in kept for test in items if test.always)
        assert not {test.path for test in kept if not test.always} & {test.path for test in out}  # whole files
    shared = [test for test in chain(*(kept for kept, _ in parts)) if not test.always]
    assert sorted(map(id, shared)) == sorted(id(test) for test in items if not test.always)


@pytest.mark.parametrize("part", ["4/3", "0/3", "x"])
def test_a_part_that_is_none_is_one_line(part):
    with pytest.raises(pytest.UsageError, match=f"--part is {part}; it must be k/n, such as 1/3"):
        conftest.asked_part(SimpleNamespace(option=SimpleNamespace(part=part)))


@pytest.mark.slow
def test_the_option_leaves_tests_out(pytester, request):
    pytester.makeini("[pytest]\nmarkers = slow")
    pytester.makeconftest((request.config.rootpath / "tests" / "conftest.py").read_text())
    code = "import pytest\n\n@pytest.mark.slow\ndef test_it():\n    pass\n"
    pytester.makepyfile(test_a=code, test_b=code)
    done = pytester.runpytest_inprocess("-m", "slow", "-p", "no:cacheprovider", "--part", "2/2")
    done.assert_outcomes(passed=1, deselected=1)
