"""Model repositories: models, versions, configs, the gate, deploy and rollback."""
