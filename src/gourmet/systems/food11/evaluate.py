"""Evaluation of the food network."""

from __future__ import annotations

from typing import Final

from gourmet.evaluation.picture_evaluation import ClassifierEvaluation
from gourmet.evaluation.system_parts import Evaluation
from gourmet.systems.food11.contract import SYSTEM
from gourmet.systems.food11.data import DATA
from gourmet.systems.food11.network import load

# For networks that others trained: ours bring the calibration that training chose on sources held out.
EVALUATION: Final[Evaluation] = ClassifierEvaluation(SYSTEM, DATA, load, accuracy_goals={"validation": 0.93})
