"""Files from the network: what came before an interruption is kept, and the next try goes on from there."""

import hashlib
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path

from rheobase.files import first_line

TIMEOUT = 60  # seconds without a byte
PIECE = 2**20  # bytes
WHOLE, PARTIAL, BEYOND = 200, 206, 416  # what a server answers


def download(url: str, path: Path, md5: str) -> None:
    """Get the file at `url`, which has this checksum. A download that was cut short lies beside `path`."""
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _receive(url, part)
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or first_line(error)
        raise OSError(
            f"could not download {url}: {reason}; try again, which goes on from here, or get it by other means "
            f"and unpack it into {path.parent}"
        ) from None
    with open(part, "rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != md5:
        part.unlink()
        raise ValueError(f"what came from {url} is not the official archive: its checksum differs; try again")
    part.replace(path)


def _receive(url: str, part: Path) -> None:
    """Append what `part` lacks."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == BEYOND:  # all of it is there
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
        raise OSError(f"it ended after {came} of {expected} bytes")
