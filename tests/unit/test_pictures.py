"""What a terminal shows, and how it is drawn."""

from xml.etree import ElementTree

from benchmarks.pictures import screen_of, terminal_picture


def test_a_line_that_is_drawn_again_is_shown_once() -> None:
    assert screen_of("\r\x1b[Klag 1 s\r\x1b[Kall is written\r\nabc\rX\r\nab\x1b[Kc\r\n", 80) == ["all is written", "Xbc", "abc"]


def test_a_long_line_goes_on_below() -> None:
    assert screen_of("one two  three\n\nfour", 8) == ["one two ", " three", "", "four"]


def test_the_picture_holds_every_line_and_what_markup_would_mean() -> None:
    root = ElementTree.fromstring(terminal_picture(["$ demo", "a <b> & c", ""], 20))
    assert [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")] == ["$ demo", "a <b> & c", None]
