"""Write a network as the files that Triton serves."""
