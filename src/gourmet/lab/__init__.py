"""The lab: predict a figure, measure it on a running Triton, and see an explanation of what was measured.

    begin(3)                                        # a known config, whatever was tried before
    predict("3a: sixteen clients get … times the rows per second of one", 0.9, 1.5)
    runs = measure(one=arm("food_first"), sixteen=arm("food_first", clients=16))
    answer("3a", times(runs.sixteen, runs.one))
    end()                                           # the server is as it was found

Everything of a student's lab lies in one folder, from which `gourmet lab hand-in` makes a page.
"""

from gourmet.lab.exercises import answer, begin, copy_of, end, predict
from gourmet.lab.measuring import (
    agreement,
    arm,
    average,
    in_flight,
    in_turns,
    infer_share,
    measure,
    reported,
    rows_per_execution,
    times,
    times_as_long,
)
from gourmet.lab.page import Page, cards

__all__ = [
    "Page",
    "agreement",
    "answer",
    "arm",
    "average",
    "begin",
    "cards",
    "copy_of",
    "end",
    "in_flight",
    "in_turns",
    "infer_share",
    "measure",
    "predict",
    "reported",
    "rows_per_execution",
    "times",
    "times_as_long",
]
