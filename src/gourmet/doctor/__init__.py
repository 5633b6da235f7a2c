"""What is wrong with this machine or the running stack, and what to do about it, a line each."""
