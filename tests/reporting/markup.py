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


def checked(page: str) -> str:
    """The text of a page, which is refused where it is not as all pages must be."""
    outline = Outline()
    outline.feed(page)
    outline.close()
    assert outline.open == []
    assert all("alt" in image for image in outline.images)
    assert not re.search(r"<script [^>]*src|<link [^>]*stylesheet|https?://[^\s\"'<>)]*\.(?:css|js|woff2?)", page)
    return page
