"""What a served model is worth, asked through the server: accuracy, agreement, latency. It knows no system.

A system takes part by its rooms: `contract` (LABELS, encode, probabilities, sample), `data` (listing
and read, whose photos have a `name` and a `class_id`) and `evaluate` (parts, load). Pictures
without labels need the contract alone.
"""
