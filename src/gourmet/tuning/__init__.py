"""Which config serves a model best on this machine under a goal, and why."""
