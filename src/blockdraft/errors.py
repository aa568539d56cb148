"""Every error that blockdraft raises on purpose.

One tree, so that the command line can turn any of them into one line and exit code 2, and a
server into one HTTP 4xx. Anything outside this tree is a bug of ours.
"""

__all__ = [
    "BlockdraftError",
    "CapacityError",
    "ConfigError",
    "DownloadError",
    "FileFormatError",
    "UnsupportedError",
]


class BlockdraftError(Exception):
    """Base of every deliberate error; its text is one complete message for the user."""


class ConfigError(BlockdraftError):
    """A flag, parameter or request field is unknown, out of range or contradicts another."""


class FileFormatError(BlockdraftError):
    """A file is truncated, damaged or not what its header says."""


class UnsupportedError(BlockdraftError):
    """The input is well formed but asks for something we do not implement; names it."""


class DownloadError(BlockdraftError):
    """A model could not be fetched or its checksum differs."""


class CapacityError(BlockdraftError):
    """The request does not fit: context length, K/V memory or batch size."""
