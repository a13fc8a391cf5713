"""Writing over what is there: its mode and its links stay, and nothing is written through a link of somebody else's."""

import os
import stat

import pytest

from llama_jax.plumbing import files
from llama_jax.plumbing.errors import UserError


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


def write_in_pieces(path, content):
    with files.replacing(path) as staged:
        staged.write_text(content)


WAYS = {"write": files.write, "in pieces": write_in_pieces, "together": lambda p, c: files.write_together({p: c})}


@pytest.fixture(params=WAYS)
def put(request):
    return WAYS[request.param]


@pytest.mark.parametrize("kept", [0o600, 0o640, 0o444, 0o755])
def test_a_file_keeps_its_mode(tmp_path, put, kept):
    path = tmp_path / "x"
    path.write_text("old")
    path.chmod(kept)
    put(path, "new")
    assert (path.read_text(), mode(path), os.listdir(tmp_path)) == ("new", kept, ["x"])


@pytest.mark.parametrize(("umask", "made"), [(0o022, 0o644), (0o077, 0o600), (0, 0o644)])
def test_a_new_file_gets_what_the_umask_leaves(tmp_path, put, umask, made):
    before = os.umask(umask)
    try:
        put(tmp_path / "x", "new")
    finally:
        os.umask(before)
    assert mode(tmp_path / "x") == made


def test_nobody_reads_what_is_to_replace_a_secret(tmp_path):
    path = tmp_path / "x"
    path.write_text("old")
    path.chmod(0o600)
    with files.replacing(path) as staged:
        assert mode(staged) == 0o600
        staged.write_text("new")


@pytest.mark.parametrize("chain", [["a"], ["a", "folder/b", "c"]])
@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_its_target_is_replaced(tmp_path, put, chain, there):
    (tmp_path / "folder").mkdir()
    target, links = tmp_path / "target", [tmp_path / name for name in chain]
    if there:
        target.write_text("old")
    for link, to in zip(links, [*links[1:], target], strict=True):
        link.symlink_to(os.path.relpath(to, link.parent))
    put(links[0], "new")
    assert target.read_text() == "new"
    assert all(link.is_symlink() for link in links)
    assert not list(tmp_path.rglob("*.tmp"))


def test_links_that_lead_round_are_one_line(tmp_path, put):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(UserError, match="its links lead round; remove it"):
        put(tmp_path / "a", "new")


def test_a_link_that_another_put_where_everybody_may_is_not_followed(tmp_path, put, monkeypatch):
    (tmp_path / "mine").write_text("old")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    (tmp_path / "open" / "x").symlink_to(tmp_path / "mine")
    me, real = os.geteuid(), files.Path.stat
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)  # the link, and with it the folder, is another user's

    def of_the_system(path, **options):
        status = real(path, **options)
        return os.stat_result([*status[:4], me + 2, *status[5:]]) if path == tmp_path / "open" else status

    monkeypatch.setattr(files.Path, "stat", of_the_system)
    with pytest.raises(UserError, match="it is a link of another user's; remove it"):
        put(tmp_path / "open" / "x", "new")
    assert (tmp_path / "mine").read_text() == "old"


def test_what_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "x"
    path.write_text("old")
    with pytest.raises(UserError, match="surrogates"), files.replacing(path) as staged:
        staged.write_text("half of it \ud800")
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["x"])


BUSY = "process {holder} has it"


@pytest.mark.parametrize(
    ("kind", "words"),
    [("link", "is a link"), ("name", "not a regular file with a single name"), ("pipe", "not a regular file")],
)
def test_a_lock_is_never_written_through_another_name(tmp_path, kind, words):
    """What somebody else puts in its place must not lead to a file of ours."""
    precious, lock = tmp_path / "precious", tmp_path / "lock"
    precious.write_text("all I have")
    {"link": lambda: lock.symlink_to(precious), "name": lambda: lock.hardlink_to(precious),
     "pipe": lambda: os.mkfifo(lock)}[kind]()  # fmt: skip
    with pytest.raises(UserError, match=words):
        files.taken(lock, BUSY)
    assert precious.read_text() == "all I have"


def test_a_lock_names_its_holder_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LEAVING_S", 0)
    with files.taken(tmp_path / "lock", BUSY):
        with pytest.raises(UserError, match=f"process {os.getpid()} has it"):
            files.taken(tmp_path / "lock", BUSY)
        (tmp_path / "lock").write_bytes(b"\x1b[31mred")
        with pytest.raises(UserError, match="process unknown has it"):
            files.taken(tmp_path / "lock", BUSY)
