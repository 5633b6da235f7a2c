"""Ours, the peers and the limit on the same photos and cores, in turns."""
