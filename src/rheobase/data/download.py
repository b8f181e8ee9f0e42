"""Download files. An interrupted download is kept, and the next attempt resumes it."""

import hashlib
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path

from rheobase.files import first_line

TIMEOUT = 60  # seconds without a byte
PIECE = 2**20  # bytes
WHOLE, PARTIAL, BEYOND = 200, 206, 416  # HTTP status codes


def download(url: str, path: Path, md5: str) -> None:
    """Download `url` to `path` and verify its checksum. An incomplete download stays next to `path`."""
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _receive(url, part)
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or first_line(error)
        raise OSError(
            f"could not download {url}: {reason}; try again to resume the download, or get the file another way "
            f"and unpack it into {path.parent}"
        ) from None
    with open(part, "rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != md5:
        part.unlink()
        raise ValueError(f"the file from {url} is not the official archive: its checksum differs; try again")
    part.replace(path)


def _receive(url: str, part: Path) -> None:
    """Append what is missing from `part`."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == BEYOND:  # the file is complete
            return
        raise
    with response:
        goes_on = have > 0 and response.status == PARTIAL
        length = response.headers.get("Content-Length")
        expected = int(length) if length and length.isdecimal() else None
        came = 0
        with open(part, "ab" if goes_on else "wb") as file:
            while piece := response.read(PIECE):
                file.write(piece)
                came += len(piece)
    if expected is not None and came < expected:
        raise OSError(f"the connection ended after {came} of {expected} bytes")
