"""What a served model is worth, asked through the server: accuracy, agreement, latency. It knows no system.

A system takes part by its rooms: `contract` (LABELS, encode, probabilities, sample), `data` (parts,
listing and read, whose examples have a `name` and a `class_id`) and, for the comparison with its
network, `evaluate` (load). Pictures without labels need the contract alone.
"""
