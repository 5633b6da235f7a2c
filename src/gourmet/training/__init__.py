"""The training engine: it knows no system, no picture and no label."""
