"""What a trained network is worth, measured: accuracy, calibration, mistakes. It knows no system."""
