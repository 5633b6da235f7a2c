"""The training engine: it knows no system, no picture and no label.

A system hands it a `TrainingTask` (a network, examples by number, a loss, a measure) and a `Recipe`; it
runs the epochs, keeps an exponential average of the weights, writes checkpoints that survive a kill
at any moment, and logs what happened.
"""
