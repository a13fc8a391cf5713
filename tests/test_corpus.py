"""The stdlib corpus: English that is always there, the same in every run."""

import statistics

from llama_lab import corpus


def test_the_manual_is_its_topics_in_order():
    topics = corpus.topics()
    assert len(topics) > 50
    assert corpus.manual() == "\n".join(topics)
    assert 300_000 < len(corpus.manual()) < 1_000_000
    assert corpus.topics() == topics
    topics.clear()
    assert corpus.topics()


def test_paragraphs_are_pieces_of_the_manual_none_of_them_empty():
    paragraphs, manual = corpus.paragraphs(), corpus.manual()
    assert len(paragraphs) > 1000
    assert 80 < statistics.mean(map(len, paragraphs)) < 400
    assert all(part and part == part.strip() and "\n\n" not in part for part in paragraphs)
    at = 0
    for part in paragraphs:  # in the manual's order, overlapping nowhere
        at = manual.index(part, at) + len(part)
    assert sum(len(part.split()) for part in paragraphs) == len(manual.split())


def test_the_code_is_code_and_the_same_each_time():
    code = corpus.code()
    assert 50_000 < len(code) < 1_000_000
    assert code == corpus.code()
    assert all(f"def {name}(" in code for name in ("mean", "wrap", "heappush"))
    compile(code.replace("from __future__", "# from __future__"), "corpus", "exec")
