"""Operations and bytes of a network by layer, against what a machine can compute and move."""
