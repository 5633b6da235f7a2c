"""Systems that answer with one label out of a list: accuracy, calibration, the gate, the check."""
