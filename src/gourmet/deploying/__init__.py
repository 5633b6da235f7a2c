"""From trained weights to a version folder that Triton serves, through a gate.

A system says in its `export` module which models it has; its task makes a `Target` of each, which builds
itself and compares itself with the network it was made from. Everything else is here and the same for
all: build aside, have it verified, write the manifest, move the whole folder into place.
"""
