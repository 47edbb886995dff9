"""HTML report on one or several runs."""
