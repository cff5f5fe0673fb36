"""Files of a multipart/form-data body (RFC 7578), as E2B's client uploads them."""

from __future__ import annotations

from email.message import Message


def files_in(content_type: str, body: bytes) -> list[tuple[str, bytes]]:
    """File names and contents, in order.

    Raises:
        ValueError: it is no multipart body.
    """
    header = Message()
    header["Content-Type"] = content_type
    boundary = header.get_param("boundary")
    if not isinstance(boundary, str) or not boundary:
        raise ValueError("the multipart body names no boundary")
    mark = b"--" + boundary.encode()
    # The first boundary may stand at the very start, without a line before it.
    pieces = (b"\r\n" + body).split(b"\r\n" + mark)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise ValueError("the multipart body is not complete")
    files = []
    for piece in pieces[1:-1]:
        head, separator, data = piece.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        if not separator:
            raise ValueError("a part of the multipart body has no headers")
        for line in head.decode(errors="replace").split("\r\n"):
            name, _, value = line.partition(":")
            if name.strip().lower() == "content-disposition":
                part = Message()
                part["Content-Disposition"] = value.strip()
                filename = part.get_filename()
                if filename is not None:
                    files.append((filename, data))
    return files
