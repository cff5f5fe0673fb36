"""The extractor on sentences labelled by hand: what an opening sentence states of its document's subject, and what it does not."""

from __future__ import annotations

from environments.protocols import Document
from tasks.kinds.knowledge.statements import statements

LABELLED: tuple[tuple[str, str], ...] = (
    ("A language designed by Niklaus Wirth in 1970.", "creator=Niklaus Wirth introduced=1970"),
    ("A text editor written by Richard Stallman.", "creator=Richard Stallman"),
    ("A home computer introduced by Sinclair Research in 1982.", "introduced=1982"),
    ("A company founded in 1975.", "introduced=1975"),
    ("A chip released in April 1976 by National Semiconductor.", "introduced=1976-04"),
    ("A browser released on 2004-11-09.", "introduced=2004-11-09"),
    ("A hash function published in 1995.", "introduced=1995"),
    ("An archiver created by Phil Katz for MS-DOS.", "creator=Phil Katz"),
    ("A format developed by CompuServe in June 1987.", "creator=CompuServe introduced=1987-06"),
    ("A shell originally written by Brian Fox in 1989.", "creator=Brian Fox introduced=1989"),
    ("A network standard proposed by Xerox in 1976, now common.", "creator=Xerox introduced=1976"),
    ("A micro running at 4 MHz.", "clock=4 MHz"),
    ("A workstation with a processor clocked at 33 MHz.", "clock=33 MHz"),
    ("A board with a clock rate of 1.5 GHz.", "clock=1.5 GHz"),
    ("A kernel first released in 1991.", "introduced=1991"),
    ("A mark-up language devised by John Gruber.", "creator=John Gruber"),
    ("A protocol invented by Ray Tomlinson in 1971 for mail.", "creator=Ray Tomlinson introduced=1971"),
    ("A relational database developed at Berkeley in 1986.", "introduced=1986"),
    ("A spreadsheet designed by Dan Bricklin and others.", ""),
    ("A typesetting system written by D. E. Knuth in 1978.", "creator=D. E. Knuth introduced=1978"),
    ("A games console launched in September 1999.", "introduced=1999-09"),
    ("A compression scheme developed by Abraham Lempel, Jacob Ziv and Terry Welch.", ""),
    ("An interface developed by Adaptec for disks.", "creator=Adaptec"),
    ("A logic language created in 1972.", "introduced=1972"),
    ("A window system developed by MIT in 1984.", "creator=MIT introduced=1984"),
    ("A system announced in March 1964.", "introduced=1964-03"),
    ("A parser generator written by Stephen Johnson at Bell Labs.", "creator=Stephen Johnson"),
    ("A laptop introduced in 1991 by Apple.", "introduced=1991"),
    ("A query language developed by IBM in the 1970s.", "creator=IBM"),
    ("A debugger written by Ludwig van Beethoven in 2001.", "creator=Ludwig van Beethoven introduced=2001"),
    ("A dialect developed in 1967-69.", ""),
    ("A dialect developed about 1955.", ""),
    ("A dialect probably written in 1960.", ""),
    ("A system similar to one developed by Digital in 1977.", ""),
    ("The successor of a language designed by Kenneth Iverson in 1962.", ""),
    ("The leader of the group which developed Smalltalk in 1972.", ""),
    ("A system for the computer (announced in 1964).", ""),
    ("A product planned to be released in 1999.", ""),
    ("A method being developed in 2000.", ""),
    ("A value printed in 1024 columns.", ""),
    ("A library written in C.", ""),
    ("A program written by hand.", ""),
    ("A list created by calling a constructor.", ""),
    ("A record written to disk in 512 byte blocks.", ""),
    ("A tool released between 1990 and 1995.", ""),
    ("A tool released in 1990 and again in 1995.", ""),
    ("A port of the editor that was written by Bill Joy in 1976.", ""),
    ("Any software not written by its user.", ""),
    ("A machine based on a design invented by Konrad Zuse in 1941.", ""),
    ("An attack developed by J.", ""),
    ("An expression evaluated in 10 steps.", ""),
    ("A signal sampled at 44 kHz.", ""),
    ("A bus that runs at 8 MHz or 16 MHz.", ""),
    ("A processor rumoured to be clocked at 90 MHz.", ""),
    ("A philosophy who some say was proposed by Plato.", ""),
    ("A standard published by ISO in the 1990s.", ""),
    ("A method for printing, replaced by one introduced in 1985.", ""),
    ("A collection of papers.", ""),
    ("A function that returns the year 1970.", ""),
    ("A suite with programs which were written by Psion.", ""),
    ("A theorem proved in 1931.", ""),
    ("A bug found in 1947 by operators.", ""),
    ("Software designed to run on 1990s hardware.", ""),
    ("A unit named after Blaise Pascal.", ""),
)


def test_precision_and_recall_on_labelled_sentences() -> None:
    assert len(LABELLED) >= 60
    found, wanted = set(), set()
    for i, (sentence, label) in enumerate(LABELLED):
        document = Document(f"d{i}", f"Thing {i}", sentence, "labelled", "MIT")
        found |= {(i, s.relation, s.value) for s in statements(document)}
        readings = label.replace(" introduced=", "|introduced=").split("|") if label else []
        wanted |= {(i, *reading.split("=")) for reading in readings}
    right = found & wanted
    assert len(right) / len(found) >= 0.95, sorted(found - wanted)
    assert len(right) / len(wanted) >= 0.9, sorted(wanted - found)


def test_two_values_of_one_relation_leave_it_out() -> None:
    text = "A language designed by Ada Byrne in 1960. It was first released in 1962."
    assert [s.relation for s in statements(Document("d", "Thing", text, "s", "MIT"))] == ["creator"]


def test_an_api_object_was_added_in_the_version_that_stands_alone() -> None:
    text = "f(x)\n\nDoes it.\n\n.. versionadded:: 1.4\n"
    (said,) = statements(Document("d", "pkg.mod.f", text, "pkg", "MIT"))
    assert (said.subject, said.relation, said.value, said.scope) == ("mod.f", "added_in", "1.4", "pkg")
    assert statements(Document("d", "pkg.mod.f", text + "\n.. versionchanged:: 1.5\n", "pkg", "MIT")) == ()
