"""Licences from what a page or a repository itself says, as SPDX identifiers where they are unmistakable, else `unknown`.

Sources: rel=license (HTML standard, section 4.6.7.8; also in the Link header, RFC 4946), Creative Commons addresses
(creativecommons.org/licenses/by-sa/4.0/), SPDX-License-Identifier lines (SPDX specification, annex E), and phrases that
stand in one licence's text and in no other's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

UNKNOWN = "unknown"
_CREATIVE_COMMONS = re.compile(
    r"^(?:https?:)?//(?:www\.)?creativecommons\.org/(?:licenses/([a-z-]+)/(\d\.\d)|(publicdomain)/(zero|mark)/(\d\.\d))(?:/|$)", re.I
)
_ADDRESSES: tuple[tuple[str, str], ...] = (
    ("gnu.org/licenses/fdl-1.3", "GFDL-1.3-or-later"),
    ("gnu.org/licenses/gpl-3.0", "GPL-3.0"),
    ("gnu.org/licenses/old-licenses/gpl-2.0", "GPL-2.0"),
    ("apache.org/licenses/license-2.0", "Apache-2.0"),
    ("opensource.org/licenses/mit", "MIT"),
    ("opensource.org/license/mit", "MIT"),
    ("opensource.org/licenses/bsd-3-clause", "BSD-3-Clause"),
    ("opensource.org/license/bsd-3-clause", "BSD-3-Clause"),
    ("opensource.org/licenses/bsd-2-clause", "BSD-2-Clause"),
    ("opensource.org/license/bsd-2-clause", "BSD-2-Clause"),
    ("mozilla.org/mpl/2.0", "MPL-2.0"),
    ("mozilla.org/en-us/mpl/2.0", "MPL-2.0"),
)
_SPDX_LINE = re.compile(r"SPDX-License-Identifier:[ \t]*([A-Za-z0-9.+() -]{2,120})")
_EXPRESSION = re.compile(r"[A-Za-z0-9(][A-Za-z0-9.+()-]*(?: [A-Za-z0-9(][A-Za-z0-9.+()-]*)*")

_GRANT = "permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted"
_TEXTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("AGPL-3.0", ("gnu affero general public license version 3, 19 november 2007",)),
    ("LGPL-3.0", ("gnu lesser general public license version 3, 29 june 2007",)),
    ("LGPL-2.1", ("gnu lesser general public license version 2.1, february 1999",)),
    ("GPL-3.0", ("gnu general public license version 3, 29 june 2007",)),
    ("GPL-2.0", ("gnu general public license version 2, june 1991",)),
    ("GFDL-1.3", ("gnu free documentation license version 1.3, 3 november 2008",)),
    ("Apache-2.0", ("apache license version 2.0, january 2004",)),
    ("MPL-2.0", ("mozilla public license version 2.0 ", "1. definitions")),
    ("EPL-2.0", ("eclipse public license - v 2.0",)),
    ("Unlicense", ("this is free and unencumbered software released into the public domain",)),
    ("CC0-1.0", ("cc0 1.0 universal",)),
    ("CC-BY-SA-4.0", ("creative commons attribution-sharealike 4.0 international",)),
    ("CC-BY-4.0", ("creative commons attribution 4.0 international",)),
    ("BSL-1.0", ("boost software license - version 1.0",)),
    ("0BSD", (f"{_GRANT}. the software",)),
    ("ISC", (f"{_GRANT}, provided",)),
    ("ISC", (f"{_GRANT.replace('/or', '')}, provided",)),
    ("MIT", ("permission is hereby granted, free of charge, to any person obtaining a copy", "in all copies or substantial portions")),
)
"""(identifier, phrases that must all occur), in lower case with single spaces."""
_BSD = "redistribution and use in source and binary forms, with or without modification"
_BSD_NAME = re.compile(r"may (?:not )?be used to endorse or promote products")


def of_address(address: str) -> str:
    """The licence that an address of a licence means; `unknown` when it is none of the well-known."""
    if match := _CREATIVE_COMMONS.match(address.strip()):
        kind, version, public, which, public_version = match.groups()
        if public:
            return f"CC0-{public_version}" if which.lower() == "zero" else "public domain"
        return f"CC-{kind.upper()}-{version}"
    plain = re.sub(r"^(?:https?:)?//(?:www\.)?", "", address.strip().lower())
    return next((name for start, name in _ADDRESSES if plain.startswith(start)), UNKNOWN)


def of_links(declared: Iterable[str], others: Iterable[str] = ()) -> str:
    """The licence of a page.

    Args:
        declared: addresses that the page names as its licence (rel=license).
        others: all its links; among these only Creative Commons ones count, and only when all agree: a page may well
            link to several licences it merely speaks of.
    """
    stated = [name for name in map(of_address, declared) if name != UNKNOWN]
    if stated:
        return " AND ".join(dict.fromkeys(stated))
    found = {of_address(link) for link in others if _CREATIVE_COMMONS.match(link.strip())}
    return found.pop() if len(found) == 1 else UNKNOWN


def of_link_header(header: str) -> list[str]:
    """Addresses with rel=license in a Link header."""
    return [m[1] for m in re.finditer(r"<([^<>]{1,500})>\s*;[^,<]*?\brel\s*=\s*\"?[^\",;]*\blicense\b", header, re.I)]


def of_text(text: str) -> str:
    """The licence whose text this is (a LICENSE file), or that its SPDX line names; `unknown` when neither is clear.

    A file that holds several texts names them all: which of them is for what would take a lawyer.
    """
    if (line := spdx_line(text)) != UNKNOWN:
        return line
    flat = " ".join(re.sub(r"[*#>`\"“”]", " ", text[:200_000]).lower().split())
    names = [name for name, phrases in _TEXTS if all(phrase in flat for phrase in phrases)]
    if _BSD in flat:
        names.append("BSD-3-Clause" if _BSD_NAME.search(flat) else "BSD-2-Clause")
    return " AND ".join(dict.fromkeys(names)) or UNKNOWN


def spdx_line(text: str) -> str:
    """What an SPDX-License-Identifier line in the first 5,000 characters says, or `unknown`."""
    match = _SPDX_LINE.search(text[:5000])
    expression = _EXPRESSION.match(match[1].strip()) if match else None
    return expression[0].strip() if expression else UNKNOWN
