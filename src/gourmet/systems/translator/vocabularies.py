"""Vocabularies as others publish them, brought into the files that a tokenizer here is made of.

Marian's are those files. T5's pieces have the numbers that SentencePiece gives them, and what is to be done
with a text stands before it, in words. M2M100's have numbers of their own, and behind them the languages: the
source's stands before a source, and the target's is what an answer is made to begin with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sentencepiece import SentencePieceProcessor

from gourmet.errors import GourmetError
from gourmet.runtime.bounded_reading import read_bytes, read_table
from gourmet.systems.translator.tokenizer import BEGINNINGS, END, FILES, PAD, SOURCE, TARGET, VOCABULARY
from gourmet.tasks.generation.checkpoints import CONFIG
from gourmet.tasks.generation.packages import needed

_T5: Final = "spiece.model"
_M2M100: Final = "sentencepiece.bpe.model"
_ADDED: Final = "added_tokens.json"
_SETTINGS: Final = "tokenizer_config.json"
# Of each `model_type`: the files without which it has no vocabulary here.
_NEEDED: Final[Mapping[str, Sequence[str]]] = {
    "marian": FILES,
    "m2m_100": (_M2M100, VOCABULARY),
    "t5": (_T5,),
    "mt5": (_T5,),
}
# All that is asked for where a checkpoint is named and not there.
DOWNLOADED: Final = (*FILES, _T5, _M2M100, _ADDED, _SETTINGS)
_OF_OTHERS: Final = "tokenizer.json"
_MOST_BYTES: Final = 64 << 20
# Of a source and a target, as HTML names them.
Languages = tuple[str, str]


def files_of(folder: Path, config: Mapping[str, Any], languages: Languages) -> dict[str, bytes]:
    """A tokenizer's, of the checkpoint in `folder`; GourmetError, or ValueError and the like of bad files."""
    kind = str(config.get("model_type", "marian"))
    if lacking := [name for name in _NEEDED[kind] if not (folder / name).is_file()]:
        instead = f", and {_OF_OTHERS} is not read" if (folder / _OF_OTHERS).is_file() else ""
        raise GourmetError(
            f"{folder} lacks {', '.join(lacking)}: the vocabulary of SentencePiece that belongs beside the "
            f"weights{instead}"
        )
    files = {name: read_bytes(folder / name, _MOST_BYTES) for name in _NEEDED[kind]}
    if kind == "marian":
        return files
    ids, begin = _MADE[kind](folder, files, config, languages)
    pieces = {number: piece for piece, number in ids.items()}
    start = int(config.get("decoder_start_token_id", ids[END if kind == "m2m_100" else PAD]))
    if start not in pieces:
        raise GourmetError(f"{folder}: {CONFIG} begins answers with {start}, which its vocabulary lacks")
    begin["start"] = pieces[start]
    for what, piece in (("pad_token_id", PAD), ("eos_token_id", END)):
        if config.get(what, number := ids.get(piece)) != number:
            raise GourmetError(
                f"{folder}: {CONFIG} has {what} {config[what]!r}, and the vocabulary has {piece} at {number}"
            )
    model = files[_NEEDED[kind][0]]
    return {
        SOURCE: model,
        TARGET: model,
        VOCABULARY: json.dumps(ids, ensure_ascii=False).encode(),
        BEGINNINGS: json.dumps(begin, ensure_ascii=False).encode(),
    }


def _of_t5(
    folder: Path, files: Mapping[str, bytes], config: Mapping[str, Any], languages: Languages
) -> tuple[dict[str, int], dict[str, Any]]:
    model = SentencePieceProcessor(model_proto=files[_T5])
    ids = {model.id_to_piece(number): number for number in range(model.get_piece_size())}
    if "prefix" in config:
        return ids, {"text": str(config["prefix"] or "")}
    tasks: Any = config.get("task_specific_params") or {}
    translations = {name: task for name, task in tasks.items() if name.startswith("translation_")}
    ours = "translation_{}_to_{}".format(*map(_primary, languages))
    if translations and ours not in translations:
        raise GourmetError(
            f"{folder} has {', '.join(sorted(translations))} and not {ours}: if it translates that, put what "
            f'its texts begin with into {CONFIG}, as "prefix": "translate …: ", or "" for nothing'
        )
    return ids, {"text": str(translations.get(ours, {}).get("prefix") or "")}


def _of_m2m100(
    folder: Path, files: Mapping[str, bytes], config: Mapping[str, Any], languages: Languages
) -> tuple[dict[str, int], dict[str, Any]]:
    ids: dict[str, int] = json.loads(files[VOCABULARY])
    known = _languages_of(folder, ids)
    signs = [f"__{_primary(language)}__" for language in languages]
    if lacking := [sign for sign in signs if sign not in known]:
        raise GourmetError(
            f"{folder} has no language {', '.join(lacking)}: it has {', '.join(sorted(known)[:200])}"
        )
    source, target = signs
    forced = config.get("forced_bos_token_id")
    if forced not in (None, known[target]):
        said = next((sign for sign, number in known.items() if number == forced), forced)
        raise GourmetError(f"{folder}: its answers begin with {said}, and the system's with {target}")
    return {**ids, **{sign: known[sign] for sign in signs}}, {"source": [source], "answer": [target]}


def _languages_of(folder: Path, ids: Mapping[str, int]) -> dict[str, int]:
    """As the file beside it says, or else those of transformers' tokenizer, behind the pieces."""
    if (folder / _ADDED).is_file():
        said = {**ids, **read_table(folder / _ADDED)}
        if found := {sign: int(number) for sign, number in said.items() if _is_language(sign)}:
            return found
    if found := {sign: number for sign, number in ids.items() if _is_language(sign)}:
        return found
    with needed():
        from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES
    settings = read_table(folder / _SETTINGS) if (folder / _SETTINGS).is_file() else {}
    codes = FAIRSEQ_LANGUAGE_CODES[settings.get("language_codes", "m2m100")]
    return {f"__{code}__": len(ids) + place for place, code in enumerate(codes)}


def _is_language(sign: str) -> bool:
    return len(sign) > 4 and sign.startswith("__") and sign.endswith("__")


def _primary(language: str) -> str:
    """The language alone, without a script or a region."""
    return language.partition("-")[0]


_Made = Callable[
    [Path, Mapping[str, bytes], Mapping[str, Any], Languages], tuple[dict[str, int], dict[str, Any]]
]
_MADE: Final[Mapping[str, _Made]] = {"m2m_100": _of_m2m100, "t5": _of_t5, "mt5": _of_t5}
