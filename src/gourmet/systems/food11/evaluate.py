"""How the food network is evaluated."""

from __future__ import annotations

from typing import Final

from gourmet.systems.food11.contract import SYSTEM
from gourmet.systems.food11.data import DATA
from gourmet.systems.food11.network import load
from gourmet.tasks.classification.evaluation import ClassifierEvaluation
from gourmet.tasks.system_parts import Evaluation

EVALUATION: Final[Evaluation] = ClassifierEvaluation(
    SYSTEM,
    DATA,
    load,
    accuracy_goals={"validation": 0.85, "sharp": 0.9},
    # The sharp photos have no soup, and show a bread and cheeses that the training photos do not.
    views={
        "the eight classes that the sharp photos share with the training photos": [
            label for label in SYSTEM.labels if label not in ("Bread", "Dairy product", "Soup")
        ],
    },
)
