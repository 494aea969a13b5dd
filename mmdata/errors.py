"""Every error a user can meet, typed, with the exit code the command line gives it.

An error names the thing that is wrong and how to mend it. `MediaError` and its children are about one sample: they end
up as a row of the quarantine, never as the end of a job. Everything else ends the job.
"""

from __future__ import annotations


class TesseraError(Exception):
    """Base of all errors raised on purpose. `exit_code` is what the command line exits with."""

    exit_code = 1


class ConfigError(TesseraError):
    """The recipe, a setting or a command-line argument is wrong; nothing was read or written."""

    exit_code = 2


class ErrorLimitExceeded(TesseraError):
    """More samples were bad than `limits.max_bad` allows."""

    exit_code = 3


class StorageError(TesseraError):
    """A file or object could not be listed, read or written."""


class NotFound(StorageError):
    """The file or object is not there."""


class FormatError(TesseraError):
    """A shard, table or tar is not what its name says, or is damaged; the message names file and byte."""


class DatasetError(TesseraError):
    """A dataset or catalog folder is missing, unfinished, or disagrees with its own manifest."""


class WorkerError(TesseraError):
    """A worker process died or raised; the message carries its traceback."""


class MediaError(TesseraError):
    """One sample's media is bad. The class name is the quarantine's `error_class`."""


class MissingMedia(MediaError):
    """The sample names a file or object that does not exist."""


class EmptyMedia(MediaError):
    """The media has no bytes, or no picture, frame or audio sample in it."""


class UnreadableMedia(MediaError):
    """No decoder recognises the bytes, or the decoder refuses them."""


class TruncatedMedia(MediaError):
    """The media ends before its own header says it should."""


class UnsupportedMedia(MediaError):
    """The media is recognised but uses a feature that no installed decoder supports."""


class DecompressionBomb(MediaError):
    """The header declares more pixels, frames or samples than `limits` allow; it was not decoded."""


class DecodeTimeout(MediaError):
    """Decoding used more CPU or wall time than the deadline, twice (the second time alone)."""


class DecoderCrash(MediaError):
    """The decoder killed its process (segmentation fault, abort)."""


class MemoryLimit(MediaError):
    """Decoding asked for more memory than `limits.memory`."""


class EncodeError(MediaError):
    """The decoded media could not be encoded in the requested format."""


class OperatorError(MediaError):
    """An operator of the recipe raised on this sample; the message names the operator."""


class InvalidSample(MediaError):
    """The sample's description is wrong: placeholders do not match media, bad JSON, a missing column, a bad key."""
