"""Text on top of the engine: sessions, streams and results."""

from blockdraft.session.prompt import Message, Prompt
from blockdraft.session.result import Result, TextChunk, Timings
from blockdraft.session.session import Session
from blockdraft.session.settings import AnswerSettings
from blockdraft.session.stream import Stream

__all__ = [
    "AnswerSettings",
    "Message",
    "Prompt",
    "Result",
    "Session",
    "Stream",
    "TextChunk",
    "Timings",
]
