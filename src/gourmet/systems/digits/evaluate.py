"""Evaluation of the digits network."""

from __future__ import annotations

from typing import Final

from gourmet.evaluation.picture_evaluation import ClassifierEvaluation
from gourmet.evaluation.system_parts import Evaluation
from gourmet.systems.digits.contract import SYSTEM
from gourmet.systems.digits.data import DATA, DRAWN
from gourmet.systems.digits.network import load

# The bundled validation part is small: where all answers are right, no threshold can be chosen.
EVALUATION: Final[Evaluation] = ClassifierEvaluation(
    SYSTEM, DATA, load, accuracy_goals={"validation": 0.995, DRAWN: 0.99}
)
