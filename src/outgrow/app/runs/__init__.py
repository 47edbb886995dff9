"""Running and resuming: from options or a directory to a finished run."""
