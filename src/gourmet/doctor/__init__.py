"""Diagnose this machine and the running stack: a line for each finding, with the next step."""
