"""A snapshot becomes what is in view, with numbers for what can be pointed at and nothing that only Playwright needs."""

from __future__ import annotations

from environments.tools.page_text import page_text

SNAPSHOT = """\
- generic [active] [ref=e1] [box=0,0,1024,3000]:
  - heading "Above" [level=1] [ref=e2] [box=0,-90,100,20]
  - navigation [ref=e3] [box=0,-40,1024,60]:
    - link "Home: \\"x\\" [ref=e99]" [ref=e4] [cursor=pointer] [box=0,10,50,20]:
      - /url: /a[ref=e98]
  - 'button "It''s: on" [disabled] [ref=e5] [box=0,40,50,20]'
  - text: loose [ref=e97]
  - paragraph [ref=e6] [box=0,60,50,20]: said [ref=e96] here
  - generic [ref=e7] [box=0,80,50,20]: edit me
  - iframe [ref=e8] [box=0,700,300,150]:
    - button "inside" [ref=f1e2] [box=0,5000,40,20]
  - button "after" [ref=e9] [box=0,760,10,10]
  - list [ref=e10] [box=0,800,100,900]:
    - listitem [ref=e11] [box=0,800,100,20]:
      - text: far
      - generic [ref=e12] [box=0,0,0,0]:
        - link "floating" [ref=e13] [box=0,20,30,30]
"""


def test_what_is_in_view_is_shown_and_numbered() -> None:
    page = page_text(SNAPSHOT, 768)
    assert page.text.splitlines() == [
        "- generic [active]:",
        "  - navigation:",
        '    - link "Home: \\"x\\" [ref=e99]" [1]:',
        "      - /url: /a[ref=e98]",
        "  - 'button \"It''s: on\" [2] [disabled]'",
        "  - text: loose [ref=e97]",
        "  - paragraph: said [ref=e96] here",
        "  - generic [3]: edit me",
        "  - iframe:",
        '    - button "inside" [4]',
        '  - button "after" [5]',
        '        - link "floating" [6]',
    ]
    assert page.refs == {1: "e4", 2: "e5", 3: "e7", 4: "f1e2", 5: "e9", 6: "e13"}
    assert (page.above, page.below) == (1, 4)


def test_after_a_navigation_all_references_look_like_a_frames() -> None:
    page = page_text('- generic [ref=f3e1] [box=0,0,9,9]:\n  - button "low" [ref=f3e2] [box=0,900,9,9]\n', 768)
    assert (page.text, page.below) == ("- generic:", 1)


def test_an_empty_page_is_empty() -> None:
    assert page_text("", 768).text == ""
