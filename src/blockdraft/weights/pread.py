"""Reading of files by position: what every weight file shares.

A file that shrinks under a memory map kills the process; under pread it is an error. Knows no
format.
"""

import os
import stat
from pathlib import Path

from blockdraft.errors import FileFormatError

__all__ = ["open_regular", "read_into"]


def open_regular(path: Path) -> int:
    """Descriptor of a regular file, open for reading.

    Raises:
        FileFormatError: There is no such file, or it is of another kind.
    """
    try:
        # Opening a pipe or a device could block or have effects, hence the look before.
        if not stat.S_ISREG(path.stat().st_mode):
            raise FileFormatError(f"{path}: is not a regular file")
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        reason = getattr(error, "strerror", None) or error
        raise FileFormatError(f"{path}: cannot be read: {reason}") from error


def read_into(descriptor: int, buffer: memoryview, offset: int, *, path: Path, name: str) -> None:
    """Fill ``buffer`` from ``offset`` on; ``name`` is what errors say was read.

    Raises:
        FileFormatError: The file cannot be read, or ends before the buffer is full.
    """
    done = 0
    while done < len(buffer):
        try:
            got = os.preadv(descriptor, [buffer[done:]], offset + done)
        except OSError as error:
            raise FileFormatError(f"{path}: {name} cannot be read: {error.strerror}") from error
        if got == 0:
            raise FileFormatError(
                f"{path}: shrank while it was read: {name} needs byte"
                f" {offset + len(buffer)}, the file now has {offset + done}"
            )
        done += got
