"""Every exercise of every notebook: a right answer is called right, a wrong one is not, none is no mistake."""

import ast
import contextlib
import io
import re

import nbformat
import pytest

from llama_lab.playground.lesson import UNANSWERED
from llama_lab.reporting import notebooks

SOFTMAX = """
def mine(scores, t):
    weights = jnp.exp((scores - scores.max()) / t)
    return weights / weights.sum()
"""
WINDOW = """
def mine(token, keys, values):
    last, keys, values = with_cache(token, keys[-31:], values[-31:])
    return last, keys, values
"""
PENALISED = """
@jax.jit
def mine(scores, buffer, count):
    where = jnp.where(jnp.arange(len(buffer)) < count, buffer, 16)
    seen = jnp.zeros(16, bool).at[where].set(True, mode="drop")
    return jnp.where(seen, 0.5 * scores, scores)
"""
FOURTH = """
@partial(jax.jit, static_argnames="config")
def below_head(config, weights, ids, position_mask, cache):
    x = ll.embeddings.forward(config, weights.embeddings, ids)
    mask, layers = ll.attention.attention_mask(config, position_mask), list(cache)
    for i, layer in enumerate(weights.layers):
        x, layers[i] = ll.layer.forward(config, layer, weights.rope, mask, x, layers[i])
    return x, KVCache(layers)

@partial(jax.jit, static_argnames="config")
def above(config, weights, x, position_mask, key):
    return sample(ll.head.forward(config, weights.head, x, position_mask), key)

def mine(config, weights, ids, position_mask, cache, key):
    x, cache = below_head(config, weights, ids, position_mask, cache)
    return above(config, weights, x, position_mask, key), cache
"""
TAPPED = """
@jax.jit
def mine(params, ids):
    whole = jnp.arange(ids.shape[1])[None], jnp.ones_like(ids)
    sites = ActivationSpec("resid_post:0").resolve(small.config)
    return activations.program.tapped(params, ids, *whole, config=small.config, sites=sites)["resid_post:0"][0]
"""
FOUR_BITS = """
def mine(values):
    low, high = values.min(-1, keepdims=True), values.max(-1, keepdims=True)
    return low + (high - low) / 15 * np.round((values - low) / ((high - low) / 15))
"""
ACCEPTED = """
def mine(drafts, chosen):
    n = 0
    while n < len(drafts) and drafts[n] == chosen[n]:
        n += 1
    return n + 1
"""
WAITED = """
def mine(due, needs):
    free, waits = 0.0, []
    for at, need in zip(due, needs):
        free = max(free, at) + need
        waits.append(free - at)
    return np.array(waits)
"""
TWO_LENGTHS = "mine = lambda n: dict(length=32 if n <= 32 else 48, slots=64)"
TWO = "mine_2 = ll.Placement('two', jit=('ffn', 'head'))"
BLOCK = """
def mine(numbers, scale, smallest, x, s):
    return scale * s * (numbers * x).sum() + smallest * s * x.sum()
"""
ANSWERS = {  # notebook → (right, wrong) of each exercise, in order; a number, a word, or code that defines `mine`
    "00": (("2", "1"), ("right", "1.0")),
    "01": (("6", "8"), (PENALISED, "mine = lambda scores, buffer, count: scores")),
    "02": (("right", "20.0"), (FOURTH, "mine = lambda c, w, ids, *more: pipeline_1(c, w, ids + 1, *more)")),
    "03": (("14", "7"), (TWO_LENGTHS, "mine = lambda n: dict(length=n, slots=n + 3)")),
    "04": (("92.16", "138.24"), (WINDOW, "mine = with_cache")),
    "05": (("10", "120"), ("right", "30")),
    "06": (("0.861", "0.5"), (FOUR_BITS, "mine = lambda values: values")),
    "07": (("7.22", "5.5"), (BLOCK, "mine = lambda numbers, scale, smallest, x, s: scale * s * (numbers * x).sum()")),
    "08": (("1.9", "8"), (ACCEPTED, "mine = lambda drafts, chosen: 1 + (drafts == chosen[:-1]).sum()")),
    "09": (("'nobody can tell from them'", "'the program'"), ("0.504", "0.3")),
    "10": (("0.453", "0.547"), (WAITED, "mine = lambda due, needs: needs")),
    "11": (("720", "360"), ("[]", "[95, 99]")),
    "12": (("1.667", "2.5"), ("right", "'step+queue'")),
    "13": (("20.8", "416"), ("right", "'base'")),
    "14": (("1980", "69"), (SOFTMAX, "mine = lambda scores, t: scores / t")),
    "15": (("1.25", "5.0"), (TAPPED, "mine = lambda params, ids: params.embeddings.weight[ids[0]]")),
    "16": (("'no time'", "'3x'"), (TWO, "mine_2 = ll.Placement('two', jit=('ffn',))")),
    "17": (("3.11", "6.2"), ("11676", "8192")),
    "18": (("'whether my program has such an operation'", "'the equal tokens'"), ("2**24 + 1", "2**24")),
    "19": (("224", "448"), ("4.47", "4470.0")),
}  # fmt: skip
BLANK = re.compile(r"(?m)^(answer|mine|mine_2) = None.*$")


def exercises(cells) -> list[int]:
    """Which cells ask for an answer."""
    return [i for i, cell in enumerate(cells) if cell.cell_type == "code" and cell.source.startswith("# Your answer")]


def test_every_notebook_has_two_exercises_and_they_are_answered_here():
    asked = {path.stem[:2]: len(exercises(nbformat.read(path, as_version=4).cells)) for path in notebooks.find()}
    assert asked == dict.fromkeys(ANSWERS, 2)


def tried(source: str, answer: str) -> str:
    """The cell with an answer put in, and before it the value that is right where that is `right`."""
    name = BLANK.search(source)[1]
    if "\n" in answer or answer.startswith(f"{name} = "):
        return BLANK.sub(lambda _: answer.strip("\n"), source)
    if answer == "right":  # depends on data: what the cell itself computes
        known, rest = BLANK.sub("answer = 0.0", source), BLANK.sub("", source)
        return f"_print, print = print, lambda *texts: None\n{known}\nprint = _print\nanswer = right\n{rest}"
    return BLANK.sub(f"{name} = {answer}", source)


@pytest.mark.slow
@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("number", ANSWERS)
def test_right_answers_are_right_and_wrong_ones_are_not(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = nbformat.read(*notebooks.find((number,)), as_version=4).cells
    at = exercises(cells)
    names = {"__name__": "__main__", "display": lambda *shown: None}
    for i in needed(cells, at):
        if i not in at:
            printed(cells[i].source, names)
            continue
        right, wrong = ANSWERS[number][at.index(i)]
        for source, begins in (
            (cells[i].source, UNANSWERED),
            (tried(cells[i].source, right), "Right"),
            (tried(cells[i].source, wrong), "Not yet"),
        ):
            assert printed(source, names).startswith(begins), source


def printed(source: str, names: dict) -> str:
    """What a cell prints, run in this process: a kernel takes longer to start than most of them to run."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(source, names)
    return out.getvalue()


def needed(cells, at) -> list[int]:
    """Those cells of code and, before them, those that give a name to anything that they use. Whole notebooks are run
    elsewhere."""
    chosen, wanted = [], set()
    for i in reversed(range(len(cells))):
        if cells[i].cell_type != "code":
            continue
        tree = list(ast.walk(ast.parse(cells[i].source)))
        named = {node.id for node in tree if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        named |= {node.name for node in tree if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        named |= {alias.asname or alias.name.partition(".")[0] for node in tree
                  for alias in getattr(node, "names", ()) if isinstance(alias, ast.alias)}  # fmt: skip
        if i in at or named & wanted:
            chosen.insert(0, i)
            wanted |= {node.id for node in tree if isinstance(node, ast.Name)}
    return chosen


def test_only_what_an_exercise_needs_is_run():
    sources = ("import a.b, c as d", "x = d.e", "y = x + 1", "def f():\n    return x", "y = 2", "# Your answer\nf(a)")
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    assert needed([nbformat.v4.new_markdown_cell("x"), *cells], [6]) == [1, 2, 4, 6]
