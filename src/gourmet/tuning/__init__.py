"""Find the config that serves a model best on this machine under a goal, and explain it."""
