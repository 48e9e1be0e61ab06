"""What a web page says, for tests of pages."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any


class Words(HTMLParser):
    """Tags, text, ids, links, policy and scripts (by id) of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.scripts: dict[str | None, str] = {}
        self.text, self.line, self.policy = "", "", ""
        self._last: dict[str, Any] = {}
        self.feed(page)
        self.line = " ".join(self.line.split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        own = self._last = {**dict(attrs), "tag": tag}
        for name, found in (("id", self.ids), ("href", self.links)):
            found += [own[name]] if name in own else []
        if own.get("http-equiv") == "Content-Security-Policy":
            self.policy = own["content"]

    def handle_endtag(self, tag):
        self._last = {}

    def handle_data(self, data):
        self.text += data
        self.line += f" {data}"
        if self._last.get("tag") == "script":
            name = self._last.get("id")
            self.scripts[name] = self.scripts.get(name, "") + data
