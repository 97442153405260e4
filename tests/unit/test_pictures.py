"""What a terminal shows, how it is drawn, and what a browser makes of the pictures."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.pictures import screen_of, terminal_picture

ROOT = Path(__file__).parents[2]
WIDTHS = """return [...document.querySelectorAll("text")].filter(text => text.hasAttribute("textLength")).map(text => {
  const wanted = text.getAttribute("textLength"); text.removeAttribute("textLength");
  return [text.textContent, text.getComputedTextLength() / wanted];
})"""
"""How wide a text is by itself, in parts of the width to which the picture stretches it."""


def test_a_line_that_is_drawn_again_is_shown_once() -> None:
    assert screen_of("\r\x1b[Klag 1 s\r\x1b[Kall is written\r\nabc\rX\r\nab\x1b[Kc\r\n", 80) == ["all is written", "Xbc", "abc"]


def test_a_long_line_goes_on_below() -> None:
    assert screen_of("one two  three\n\nfour", 8) == ["one two ", " three", "", "four"]


def test_the_picture_holds_every_line_and_what_markup_would_mean() -> None:
    root = ElementTree.fromstring(terminal_picture(["$ demo", "a <b> & c", ""], 20))
    assert [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")] == ["$ demo", "a <b> & c", None]


@pytest.mark.slow
def test_a_browser_draws_the_pictures_of_readme_without_stretching_a_letter() -> None:
    # Only this test needs Selenium.
    from tests.support.browser import browser

    pictures = re.findall(r"!\[.*\]\((\S+)\)", (ROOT / "README.md").read_text())
    with browser() as window:
        for picture in pictures:
            window.open((ROOT / picture).as_uri())
            if picture.endswith(".svg"):
                widths = window.run(WIDTHS)
                assert widths and {text: width for text, width in widths if not 0.9 < width < 1.1} == {}, picture
            else:
                assert window.run("return document.images[0].naturalWidth") > 0, picture
