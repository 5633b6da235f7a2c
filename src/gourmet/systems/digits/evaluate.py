"""How the digits network is evaluated."""

from __future__ import annotations

from typing import Final

from gourmet.systems.digits.contract import SYSTEM
from gourmet.systems.digits.data import DATA
from gourmet.systems.digits.network import load
from gourmet.tasks.classification.evaluation import ClassifierEvaluation
from gourmet.tasks.system_parts import Evaluation

EVALUATION: Final[Evaluation] = ClassifierEvaluation(SYSTEM, DATA, load, accuracy_goals={"validation": 0.995})
