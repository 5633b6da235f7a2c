"""The code that served models need at run time. No module here imports torch at the top."""
