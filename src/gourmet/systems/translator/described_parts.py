"""The parts of a translator that is only data, like this one: another checkpoint, another pair of languages.

The registry asks for them by the names that a system's modules have; each is imported when it is needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gourmet.errors import UsageError
from gourmet.served.reading import error_summary, read_text
from gourmet.systems.translator.contract import Translator, check_sentences, problem

if TYPE_CHECKING:
    from gourmet.evaluation.system_parts import Evaluation, TextData
    from gourmet.generation.answers import GenerationServing
    from gourmet.repository.gate import Export

# As BCP 47 has it: a language, perhaps a script, perhaps a region.
_LANGUAGE: Final = re.compile(r"[a-z]{2,3}(-[A-Z][a-z]{3})?(-[A-Z]{2})?")
_EXAMPLES: Final = 32
_CARD: Final = """# {title}

Translates `{source}` into `{target}`.

- network: that of `{checkpoint}`, served like {like}
- trained on: say on what, under which licence, and what it does not know
- how right it is: `gourmet check {name} --data …` measures it; write down here what it says
- meant for: say for what, and for what not
"""


def card(name: str, described: Mapping[str, Any], checkpoint: str) -> str:
    """Return the model card of a new system, which its owner completes."""
    source, target = described["languages"]
    return _CARD.format(name=name, source=source, target=target, checkpoint=checkpoint, **described)


def examples(sentences: Path) -> list[str]:
    """Choose sentences evenly from the whole file; of lines with tabs, the first column."""
    try:
        lines = read_text(sentences).splitlines()
    except (OSError, ValueError) as exc:
        raise UsageError(f"--data {sentences} is not a file of texts: {error_summary(exc)}") from exc
    texts = list(dict.fromkeys(text for line in lines if (text := line.partition("\t")[0].strip())))
    if not texts:
        raise UsageError(f"--data {sentences} has no sentence in it: give one on each line")
    return texts[:: max(1, len(texts) // _EXAMPLES)][:_EXAMPLES]


def contract(name: str, described: Mapping[str, Any]) -> Translator:
    """Make a contract from `described`; raise KeyError, TypeError or ValueError."""
    source, target = described["languages"]
    if wrong := [language for language in (source, target) if not _LANGUAGE.fullmatch(language)]:
        raise ValueError(f"{wrong[0]!r} is not a language as HTML names them, such as de or pt-BR")
    examples = described["examples"]
    if not isinstance(examples, list) or not examples:
        raise ValueError("it has no sentences as examples, of which the first would be the sample")
    for text in examples:
        if why := problem(text):
            raise ValueError(f"its example {text[:40]!r} cannot be translated: {why}")
        check_sentences(text)
    return Translator(name, described["title"] + "", source, target, tuple(examples))


def data(_system: Translator) -> TextData:
    from gourmet.systems.translator.data import SentenceData

    return SentenceData(is_russian=False)


def evaluate(system: Translator) -> Evaluation:
    from gourmet.systems.translator.evaluate import EVALUATION

    return replace(EVALUATION, data=data(system))


def export(system: Translator) -> Export:
    from gourmet.systems.translator.export import TranslatorExport

    return TranslatorExport(system=system, data=data(system))


def serving(_system: Translator) -> GenerationServing:
    from gourmet.systems.translator.serving import SERVING

    return SERVING
