"""Turn trained weights into a version folder that Triton serves: built aside, verified, moved into place."""
