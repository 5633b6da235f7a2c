"""Pictures of strangers, decoded safely, and what classifiers of them have in common."""
