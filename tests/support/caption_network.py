"""The network of the captions that only the tests have: drawn by chance, a few kilobytes, no training.

    .venv/bin/python -P tests/support/caption_network.py PACKAGE

Every place of a picture votes for words, the last word votes for the next, and no word is liked twice: so an
answer depends on the picture, on the prompt and on all that was said before, as a real one does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

WORDS = 31
LONGEST = 32
END = 1
_VISION = """
vision (float[n, 49, 3] pixels) => (float[n, 1, 2, 1, 49, V] memory) {
  votes = MatMul(pixels, seen)
  middle = Constant<value_ints = [1, 2, 3]>()
  one = Unsqueeze(votes, middle)
  memory = Concat<axis = 2>(one, one)
}"""
_DECODER = """
decoder (int64[n, 1] token, int64[n, 1] length, float[n, 1, 2, 1, t, V] cache, float[n, 1, 2, 1, p, V] memory,
         int32[n, p] mask) => (int32[n, 8] tokens, float[n, 8] scores, float[n, 1, 2, 1, 1, V] added) {
  around = Constant<value_ints = [1, 2, 3, 5]>()
  inner = Constant<value_ints = [1, 2, 3, 4]>()
  first = Constant<value_ints = [1]>()
  ages = Constant<value_ints = [4]>()
  zero = Constant<value_int = 0>()
  step = Constant<value_int = 1>()
  eight = Constant<value_ints = [8]>()
  attended = Cast<to = 1>(mask)
  attended_places = Unsqueeze(attended, around)
  votes = Mul(memory, attended_places)
  all_votes = ReduceSum<keepdims = 0>(votes, inner)
  how_many = ReduceSum<keepdims = 1>(attended, first)
  picture = Div(all_votes, how_many)
  shape = Shape(cache)
  age = Gather<axis = 0>(shape, ages)
  oldest = Squeeze(age)
  places = Range(zero, oldest, step)
  there = Less(places, length)
  known = Cast<to = 1>(there)
  known_places = Unsqueeze(known, around)
  said = Mul(cache, known_places)
  all_said = ReduceSum<keepdims = 0>(said, inner)
  word = Gather(identity, token)
  now = Squeeze(word, first)
  following = Gather(bigrams, token)
  next = Squeeze(following, first)
  late = Gather(ends, length)
  ending = Squeeze(late, first)
  before = Add(all_said, now)
  tired = Mul(before, boredom)
  wish = Add(picture, next)
  wish_to_end = Add(wish, ending)
  logits = Sub(wish_to_end, tired)
  logs = LogSoftmax<axis = -1>(logits)
  scores, best = TopK<axis = -1>(logs, eight)
  tokens = Cast<to = 6>(best)
  middle = Constant<value_ints = [1, 2, 3]>()
  key = Unsqueeze(word, middle)
  added = Concat<axis = 2>(key, key)
}"""


def graphs(seed: int = 3) -> dict[str, bytes]:
    draw = np.random.default_rng(seed)
    ends = np.zeros((LONGEST, WORDS))
    ends[:, END] = np.linspace(-4, 5, LONGEST)
    ends[:, 0] = -1e4  # the start is never an answer
    weights = {
        "seen": draw.normal(0, 3, (3, WORDS)),
        "identity": np.eye(WORDS),
        "bigrams": draw.normal(0, 1.5, (WORDS, WORDS)),
        "ends": ends,
        "boredom": np.array(3.0),
    }
    return {
        "vision.onnx": _graph(_VISION, {"seen": weights["seen"]}),
        "decoder.onnx": _graph(_DECODER, {name: weights[name] for name in weights if name != "seen"}),
    }


def _graph(text: str, weights: dict[str, np.ndarray]) -> bytes:
    head = '<ir_version: 8, opset_import: ["" : 17]>'
    model = onnx.parser.parse_model(head + text.replace("V", str(WORDS)))
    for name, value in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())


if __name__ == "__main__":
    from gourmet.generation import package

    package.write_package(Path(sys.argv[1]), graphs())
