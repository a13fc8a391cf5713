"""What every page must be: well-formed, whole without the network, its pictures described."""

import re
from html.parser import HTMLParser

VOID = ("img", "meta", "link", "input", "br", "hr")


class Outline(HTMLParser):
    """Tags of a page; fails where one is closed that is not open."""

    def __init__(self):
        super().__init__()
        self.open, self.images = [], []

    def handle_starttag(self, tag, attributes):
        if tag == "img":
            self.images.append(dict(attributes))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open[-1:] == [tag], self.getpos()
        self.open.pop()


class Texts(HTMLParser):
    """The texts of a page, one for each of these elements: `said`, without tables, code to copy, and scripts."""

    BLOCKS = ("p", "li", "dt", "dd", "h1", "h2", "h3", "figcaption", "summary", "span")
    LEFT_OUT = ("th", "td", "pre", "script", "style", "title")

    def __init__(self):
        super().__init__()
        self.open, self.said = [], []

    def handle_starttag(self, tag, attributes):
        if tag in (*self.BLOCKS, *self.LEFT_OUT):
            self.open.append(tag)
            self.said.append("")

    def handle_endtag(self, tag):
        if tag in self.open:
            self.open.pop()
            self.said.append("")

    def handle_data(self, data):
        if self.open and not set(self.open) & set(self.LEFT_OUT):
            self.said[-1] += data


def texts(page: str) -> list[str]:
    """What stands in a page's elements, a text each, in one line."""
    read = Texts()
    read.feed(page)
    return [" ".join(text.split()) for text in read.said if text.strip()]


def checked(page: str) -> str:
    """The text of a page, which is refused where it is not as all pages must be."""
    outline = Outline()
    outline.feed(page)
    outline.close()
    assert outline.open == []
    assert all("alt" in image for image in outline.images)
    assert not re.search(r"<script [^>]*src|<link [^>]*stylesheet|https?://[^\s\"'<>)]*\.(?:css|js|woff2?)", page)
    return page
