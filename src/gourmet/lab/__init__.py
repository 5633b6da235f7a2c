"""What notebooks/triton.ipynb is written with: asking Triton, reading reports, drawing, judging.

Only what would hide the point of a cell lives here. The commands that change a config and put load on
a model stand in the notebook itself.
"""
