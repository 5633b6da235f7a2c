"""Make more pairs to train the translator with; a network wrote one side of each.

    gourmet train translator reverse=true --epochs 12 --data pairs.tsv --out runs/reverse
    grep ^train pairs.tsv | cut -f4 | sort -u | gourmet translate --beams 4 --out answers.jsonl
    python -P scripts/synthetic_pairs.py pairs.tsv runs/reverse/best.safetensors answers.jsonl synthetic.tsv

People's English gets the Russian of the reverse network. People's Russian gets those answers of the network
itself that are near to what people said, in other words. A pair with a word that nobody wrote is left out, as
these networks invent some where words are rare, and so is one with a sentence that is held out to measure.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from sacrebleu.metrics.chrf import CHRF

from gourmet.commands.progress import bar
from gourmet.evaluation.system_parts import Reference
from gourmet.evaluation.text_certainty import NEAR
from gourmet.served.reading import read_text
from gourmet.systems.translator.data import DATA, PARTS
from gourmet.systems.translator.evaluate import translate
from gourmet.systems.translator.network import load

_WORD = re.compile(r"[^\W\d_]+")


def back_translated(people: Sequence[Reference], weights: Path) -> Iterator[Reference]:
    reverse = load(weights)
    english = list(dict.fromkeys(pair.answer for pair in people))
    with bar("back-translation") as tick:
        russian = translate(reverse.network, reverse.tokenizer, english, tick)
    for text, answer in zip(russian, english, strict=True):
        yield Reference("back", text, answer)


def said_otherwise(people: Sequence[Reference], answers: Path) -> Iterator[Reference]:
    chrf, translations_of = CHRF(), defaultdict[str, list[str]](list)
    for pair in people:
        translations_of[pair.text].append(pair.answer)
    for line in read_text(answers).splitlines():
        row = json.loads(line)
        text, answer = row["text"], row["translation"] or ""
        if answer in translations_of[text]:
            continue
        if any(chrf.sentence_score(answer, [earlier]).score >= NEAR for earlier in translations_of[text]):
            yield Reference("own", text, answer)


def words_of(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))


def only_known_words(pairs: Iterator[Reference], people: Sequence[Reference]) -> Iterator[Reference]:
    russian = set[str]().union(*(words_of(pair.text) for pair in people))
    english = set[str]().union(*(words_of(pair.answer) for pair in people))
    for pair in pairs:
        if words_of(pair.text) and words_of(pair.text) <= russian and words_of(pair.answer) <= english:
            yield pair


if __name__ == "__main__":
    pairs, weights, answers, out = map(Path, sys.argv[1:])
    people = DATA.references(pairs, "train")
    held = [pair for part in PARTS[1:] for pair in DATA.references(pairs, part)]
    texts, translations = {pair.text for pair in held}, {pair.answer for pair in held}
    kept: dict[str, int] = defaultdict(int)
    with out.open("w", encoding="utf-8") as file:
        for made in (back_translated(people, weights), said_otherwise(people, answers)):
            for pair in only_known_words(made, people):
                if pair.text in texts or pair.answer in translations:
                    continue
                file.write(f"{pair.source}\t{pair.answer}\t{pair.text}\n")
                kept[pair.source] += 1
    sys.stderr.write(f"{dict(kept)}\n")
