"""Text to token ids and back, chat templates, incremental decoding.

The only door to the ``tokenizers`` and ``jinja2`` packages.
"""

from blockdraft.tokenizer.chat_template import ChatTemplate
from blockdraft.tokenizer.decoding import StreamDecoder
from blockdraft.tokenizer.tokenizer import MetadataFile, Tokenizer

__all__ = ["ChatTemplate", "MetadataFile", "StreamDecoder", "Tokenizer"]
