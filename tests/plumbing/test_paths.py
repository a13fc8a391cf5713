"""The folder for what is run as code: the user's alone, or one line."""

import os
import stat

import pytest

from llama_jax.plumbing import paths
from llama_jax.plumbing.errors import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_JAX_CACHE", str(tmp_path / "deep" / "cache"))
    return tmp_path / "deep" / "cache"


def mode(folder):
    return stat.S_IMODE(folder.stat().st_mode)


def test_it_is_made_for_the_user_alone_whatever_the_umask(cache):
    before = os.umask(0)
    try:
        assert paths.private("code") == cache / "code"
    finally:
        os.umask(before)
    assert [mode(folder) for folder in (cache.parent, cache, cache / "code")] == [0o700] * 3
    assert paths.private("code") == cache / "code"


def test_one_that_others_may_read_is_the_users_own(cache):
    (cache / "code").mkdir(parents=True, mode=0o755)
    paths.private("code")
    assert mode(cache / "code") == 0o755


@pytest.mark.parametrize("which", [".", "code"])
@pytest.mark.parametrize("extra", [0o020, 0o002])
def test_one_that_others_may_write_is_refused_and_so_is_one_in_it(cache, which, extra):
    paths.private("code")
    (cache / which).chmod(0o700 | extra)
    with pytest.raises(UserError, match="may be written by others.*remove it, or set LLAMA_JAX_CACHE"):
        paths.private("code")


def test_what_lies_above_the_cache_is_the_systems_affair(cache):
    paths.private("code")
    cache.parent.chmod(0o1777)  # as /tmp
    paths.private("code")


def test_one_that_belongs_to_another_user_is_refused(cache, monkeypatch):
    paths.private("code")
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(UserError, match="belongs to another user"):
        paths.private("code")


def test_a_link_to_a_folder_that_others_may_write_is_refused(cache, tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    cache.mkdir(parents=True)
    (cache / "code").symlink_to(tmp_path / "open")
    with pytest.raises(UserError, match="may be written by others"):
        paths.private("code")


@pytest.mark.parametrize(
    "put",
    [
        lambda path: path.write_text("x"),
        os.mkfifo,
        lambda path: path.symlink_to(path.name),
        lambda path: path.symlink_to("nowhere"),
    ],
)
def test_what_is_no_folder_is_one_line(cache, put):
    cache.parent.mkdir(parents=True)
    put(cache)
    with pytest.raises(UserError, match="Cannot make the folder"):
        paths.private("code")


def test_a_name_that_no_file_can_have_is_one_line(monkeypatch):
    monkeypatch.setenv("LLAMA_JAX_CACHE", "/tmp/" + "a" * 5_000)
    with pytest.raises(UserError, match="File name too long"):
        paths.private("code")


@pytest.fixture
def shared(own_lock):
    """A temporary folder that everybody may write, and the name of this user's own in it."""
    return own_lock / f"llama-jax-{os.geteuid()}"


def test_locks_lie_in_a_folder_of_the_users_own(shared):
    before = os.umask(0)
    try:
        assert paths.of_this_machine() == shared
    finally:
        os.umask(before)
    assert mode(shared) == 0o700
    assert paths.of_this_machine() == shared


def taken_by_a_link(shared, monkeypatch):
    (shared.parent / "elsewhere").mkdir()
    shared.symlink_to(shared.parent / "elsewhere")


def open_to_all(shared, monkeypatch):
    shared.mkdir()
    shared.chmod(0o777)


def of_another(shared, monkeypatch):
    me = os.geteuid()
    shared.with_name(f"llama-jax-{me + 1}").mkdir(mode=0o755)
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)


@pytest.mark.parametrize("take", [taken_by_a_link, open_to_all, of_another])
def test_what_another_put_in_its_place_is_refused(shared, monkeypatch, take):
    take(shared, monkeypatch)
    with pytest.raises(UserError, match="is to hold locks; remove it, or set TMPDIR"):
        paths.of_this_machine()


def test_a_file_in_its_place_is_one_line(shared):
    shared.write_text("x")
    with pytest.raises(UserError, match="Cannot make the folder"):
        paths.of_this_machine()
