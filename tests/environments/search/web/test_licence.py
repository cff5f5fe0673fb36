from __future__ import annotations

from pathlib import Path

import pytest

from environments.search.web.licence import of_address, of_link_header, of_text, spdx_line

_DEBIAN = Path("/usr/share/common-licenses")
MIT = """MIT License

Copyright (c) 2026 Somebody

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal ...
The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.
"""
ISC = (
    "Permission to use, copy, modify, and/or distribute this software for any\npurpose with or without fee is hereby granted, provided that"
)


@pytest.mark.skipif(not _DEBIAN.is_dir(), reason="not a Debian system")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Apache-2.0", "Apache-2.0"),
        ("BSD", "BSD-3-Clause"),
        ("CC0-1.0", "CC0-1.0"),
        ("GFDL-1.3", "GFDL-1.3"),
        ("GPL-2", "GPL-2.0"),
        ("GPL-3", "GPL-3.0"),
        ("LGPL-2.1", "LGPL-2.1"),
        ("LGPL-3", "LGPL-3.0"),
        ("MPL-2.0", "MPL-2.0"),
        ("Artistic", "unknown"),
        ("GPL-1", "unknown"),
    ],
)
def test_the_texts_that_debian_ships(name: str, expected: str) -> None:
    assert of_text((_DEBIAN / name).read_text("utf-8", "replace")) == expected


def test_short_texts() -> None:
    assert of_text(MIT) == "MIT"
    assert of_text(ISC) == "ISC"
    assert of_text(ISC.replace("granted, provided that", "granted.\n\nThe software is provided")) == "0BSD"
    assert of_text(f"{MIT}\n\n{ISC}") == "ISC AND MIT"
    assert of_text("All rights reserved. You may not copy this, MIT or not.") == "unknown"
    assert of_text("") == "unknown"


def test_spdx_lines() -> None:
    assert spdx_line("# SPDX-License-Identifier: Apache-2.0 OR MIT\nimport os\n") == "Apache-2.0 OR MIT"
    assert spdx_line("/* SPDX-License-Identifier: GPL-2.0+ */") == "GPL-2.0+"
    assert spdx_line("<!-- SPDX-License-Identifier: (MIT OR CC0-1.0) -->") == "(MIT OR CC0-1.0)"
    assert spdx_line("SPDX-License-Identifier: \n") == "unknown"


def test_addresses_and_link_headers() -> None:
    assert of_address("//creativecommons.org/licenses/by-nc-nd/3.0/de/") == "CC-BY-NC-ND-3.0"
    assert of_address("https://creativecommons.org/publicdomain/mark/1.0/") == "public domain"
    assert of_address("https://www.apache.org/licenses/LICENSE-2.0.html") == "Apache-2.0"
    assert of_address("https://example.org/terms") == "unknown"
    header = '<https://a.example/next>; rel=next, <https://b.example/l>; title="x"; rel="license"'
    assert of_link_header(header) == ["https://b.example/l"]
