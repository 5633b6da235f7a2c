"""From trained weights to a version folder that Triton serves: built aside, verified, moved into place."""
