"""From trained weights to a version folder that Triton serves, through a gate.

A system says in its `export` room which models it has (`Target`) and how each is built and opened;
everything else is here and the same for all: build aside, compare with the eager network, write the
manifest, move the whole folder into place.
"""
