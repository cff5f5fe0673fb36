"""Byte-level BPE with reserved XTML tokens, trained on a run's own training tasks and on its corpus's titles and signatures.

Numbers are cut into at most three digits: they are copied here, not computed with. Reserved tokens and frequent whole tags
have ids that encoding text never produces, so that no document or tool result can forge structure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from environments.errors import CorruptArtifactError
from environments.harness.xtml import CLOSE, OPEN, RESERVED, SEP
from environments.task import ToolSpec

PAD = "[pad]"


def element_tags(tools: Iterable[ToolSpec]) -> list[str]:
    """The opening and closing tags that single calls of `tools` need, in a stable order."""
    headers = ["think", "response", "tools"]
    headers += [f'message role="{who}"' for who in ("system", 'system" option="tools', 'system" option="effort', "user", "assistant")]
    for tool in tools:
        headers += [f'call tool="{tool.name}" index="0"', f'message role="tool" tool="{tool.name}" index="0"']
        headers += [f'arg name="{p.name}"' for p in tool.parameters]
    closing = ["think", "response", "tools", "call", "arg"]
    return [f"{OPEN}{h}{SEP}" for h in dict.fromkeys(headers)] + [f"{CLOSE}{t}{SEP}" for t in closing]


class XtmlTokenizer:
    """A byte-level BPE tokenizer whose reserved ids come first: pad, XTML brackets, then whole tags."""

    def __init__(self, bpe: Tokenizer, elements: Sequence[str]) -> None:
        self._bpe = bpe
        names = [PAD, *RESERVED, *elements]
        self._offset = len(names)
        self.pad = 0
        self.reserved = {r: names.index(r) for r in RESERVED}
        self.elements = {e: names.index(e) for e in elements}
        self.vocab_size = self._offset + bpe.get_vocab_size()

    @classmethod
    def train(cls, texts: Iterable[str], elements: Sequence[str], vocab_size: int) -> XtmlTokenizer:
        """Train on `texts`; `vocab_size` counts reserved ids and the 256 bytes."""
        bpe = Tokenizer(models.BPE())
        # Up to three digits, words with their leading space, single marks and newlines are pieces of their own.
        split = Regex(r"[0-9]{1,3}| ?[A-Za-z]+|\n *| ?[^A-Za-z0-9\s]| +|\s")
        bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(split, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        bpe.decoder = decoders.ByteLevel()
        size = vocab_size - 1 - len(RESERVED) - len(elements)
        bpe.train_from_iterator(
            texts,
            trainers.BpeTrainer(
                vocab_size=size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), min_frequency=2
            ),
        )
        return cls(bpe, elements)

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text; never a reserved id."""
        return [i + self._offset for i in self._bpe.encode(text).ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; reserved ids read as nothing."""
        return self._bpe.decode([i - self._offset for i in ids if i >= self._offset])

    def save(self, directory: Path) -> None:
        """Write `tokenizer.json` (the BPE) and `xtml.json` (reserved names in id order)."""
        directory.mkdir(parents=True, exist_ok=True)
        self._bpe.save(str(directory / "tokenizer.json"))
        (directory / "xtml.json").write_text(json.dumps({"elements": list(self.elements)}, indent=1))

    @classmethod
    def load(cls, directory: Path) -> XtmlTokenizer:
        """Raises CorruptArtifactError when the files are missing or broken."""
        try:
            elements = json.loads((directory / "xtml.json").read_text())["elements"]
            return cls(Tokenizer.from_file(str(directory / "tokenizer.json")), elements)
        except Exception as error:  # the Rust side raises bare exceptions
            raise CorruptArtifactError(f"{directory} holds no tokenizer ({type(error).__name__})", "run the cold start again") from error
