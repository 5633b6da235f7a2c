"""How threads of a process that answers several share its interpreter."""

from __future__ import annotations

import sys
from typing import Final

# Python's own is 5 ms: a thread that comes back from the network's step waits for so long while another takes
# a long text apart, again at each step.
_SWITCH_S: Final = 0.0005


def take_short_turns() -> None:
    sys.setswitchinterval(_SWITCH_S)
