"""What a web page says, for tests of pages."""

from __future__ import annotations

from html.parser import HTMLParser


class Words(HTMLParser):
    """Tags and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text, self.line = "", ""
        self.feed(page)
        self.line = " ".join(self.line.split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text += data
        self.line += f" {data}"
