"""Compare operations and bytes of a network's layers with the limits of a machine."""
