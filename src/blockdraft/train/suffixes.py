"""A corpus's answers as a file to look drafts up in. Knows no network."""

from pathlib import Path

from blockdraft.session.drafting import vocabulary_of
from blockdraft.speculative import write_suffix_corpus
from blockdraft.train.shards import Corpus, check_target
from blockdraft.weights.gguf import GGUFFile

__all__ = ["write_suffixes"]


def write_suffixes(target: Path, corpus: Path, output: Path) -> tuple[int, int]:
    """Write the file; returns the number of answers and of tokens.

    Args:
        target: The model that wrote the corpus.
        corpus: Its folder.
        output: The file.

    Raises:
        ConfigError: The corpus is of another model or empty, or the file cannot be written.
        FileFormatError: A file is damaged.
    """
    found = Corpus.open(corpus)
    check_target(found, corpus, target)
    answers = [each.token_ids[each.prompt_length :] for each in found]
    with GGUFFile.open(target) as file:
        write_suffix_corpus(output, answers, vocabulary_of(file))
    return len(answers), sum(map(len, answers))
