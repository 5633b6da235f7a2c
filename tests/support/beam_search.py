"""A search by itself, without the loop: what one in the loop has to find, among whomever."""

from __future__ import annotations

import numpy as np

from gourmet.generation.engine import Engine
from gourmet.generation.loop import Row, Vocabulary

Found = tuple[list[int], float]


def search(engine: Engine, row: Row, vocabulary: Vocabulary) -> None:
    """The row's tokens, score and others are those of a search of as many beams, and it is finished."""
    end = vocabulary.end
    (memory,) = engine.encode([row.source])
    places = memory.shape[3]
    width = engine.positions or _width(places)
    memory = np.pad(memory, ((0, 0),) * 3 + ((0, width - places), (0, 0)))
    mask = np.int32([[index < places for index in range(width)]])
    prefixes = [[vocabulary.start, *row.prefix]]  # of each beginning, what the network has had
    begun: list[Found] = [([], 0.0)]
    whole: list[Found] = []
    for length in range(1, row.max_tokens + 1):
        candidates = []
        for rank, (tokens, scores) in enumerate(_likeliest(engine, memory, mask, prefixes)):
            candidates += [
                (begun[rank][1] + score, rank, token) for token, score in zip(tokens, scores, strict=True)
            ]
        best = sorted(candidates, reverse=True)[: 2 * row.beams]
        whole += [
            (begun[rank][0], score) for score, rank, token in best[: row.beams] if token == vocabulary.end
        ]
        chosen = [candidate for candidate in best if candidate[2] != end][: row.beams]
        prefixes = [[*prefixes[rank], token] for _, rank, token in chosen]
        begun = [([*begun[rank][0], token], score) for score, rank, token in chosen]
        if len(whole) >= row.beams and max(map(_worth, whole)) >= begun[0][1] / length:
            break
    (row.tokens, row.score), *others = sorted(whole or begun, key=_worth, reverse=True)[: row.beams]
    row.others = [tokens for tokens, _ in others]
    row.finished = "stop"


def _likeliest(
    engine: Engine, memory: np.ndarray, mask: np.ndarray, prefixes: list[list[int]]
) -> list[tuple[list[int], list[float]]]:
    """Return the likeliest next tokens of each prefix, computed from its first token."""
    beams, layers, (heads, _, size) = len(prefixes), memory.shape[0], memory.shape[2:]
    rows = max(beams, engine.min_rows)
    prefixes = [*prefixes, *[prefixes[0]] * (rows - beams)]
    cache = np.zeros((rows, layers, 2, heads, _width(len(prefixes[0])), size), np.float32)
    memories, masks = np.stack([memory] * rows), np.repeat(mask, rows, axis=0)
    for index, newest in enumerate(np.transpose(prefixes)):
        lengths = np.full(rows, index, np.int64)
        tokens, scores, added = engine.step(newest.astype(np.int64), lengths, cache, memories, masks)
        cache[:, :, :, :, index] = added[:, :, :, :, 0]
    return list(zip(tokens[:beams].tolist(), scores[:beams].tolist(), strict=True))


def _width(places: int) -> int:
    """As many as the loop has for so many: sums of other numbers of zeros round otherwise."""
    return max(16, 1 << (places - 1).bit_length())


def _worth(candidate: Found) -> float:
    return candidate[1] / (len(candidate[0]) + 1)
