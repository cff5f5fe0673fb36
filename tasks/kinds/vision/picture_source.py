"""`picture.py`, a file of the task: sandboxes have no imaging library, so the workspace brings the few lines that read, crop and zoom."""

from __future__ import annotations

import base64
import struct
import zlib

PICTURE = '''"""load(path) -> Picture; Picture.at(x, y), .crop(left, top, right, bottom), .zoom(factor).

A cell that ends in a picture shows it.
"""
import base64
import struct
import zlib


class Picture:
    def __init__(self, width, height, rows):
        self.width, self.height, self.rows = width, height, rows  # rows: bytes, three a pixel (red, green, blue)

    def at(self, x, y):
        return tuple(self.rows[y][3 * x : 3 * x + 3])

    def crop(self, left, top, right, bottom):
        left, top, right, bottom = max(0, left), max(0, top), min(self.width, right), min(self.height, bottom)
        return Picture(right - left, bottom - top, [row[3 * left : 3 * right] for row in self.rows[top:bottom]])

    def zoom(self, factor):
        rows = [b"".join(row[i : i + 3] * factor for i in range(0, len(row), 3)) for row in self.rows]
        return Picture(self.width * factor, self.height * factor, [row for row in rows for _ in range(factor)])

    def _repr_png_(self):
        def part(name, data):
            return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        head = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        body = zlib.compress(b"".join(b"\\0" + row for row in self.rows))
        return b"\\x89PNG\\r\\n\\x1a\\n" + part(b"IHDR", head) + part(b"IDAT", body) + part(b"IEND", b"")


def load(path="picture.png.b64"):
    data = base64.b64decode(open(path).read())
    width, height = struct.unpack(">II", data[16:24])
    at, body = 8, b""
    while at < len(data):
        size, name = struct.unpack(">I4s", data[at : at + 8])
        body += data[at + 8 : at + 8 + size] if name == b"IDAT" else b""
        at += 12 + size
    raw, step = zlib.decompress(body), 1 + 3 * width
    return Picture(width, height, [raw[i + 1 : i + step] for i in range(0, len(raw), step)])
'''


def png_text(width: int, height: int, rgb: bytes) -> str:
    """A PNG file in base64, for a task's files are text; rows unfiltered, as `picture.py` reads them."""

    def part(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = b"".join(b"\0" + rgb[i : i + 3 * width] for i in range(0, len(rgb), 3 * width))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(rows, 9)) + part(b"IEND", b"")
    return base64.encodebytes(data).decode()
