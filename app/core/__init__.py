"""What every page and route shares: settings, errors, messages, logs, metrics, access."""
