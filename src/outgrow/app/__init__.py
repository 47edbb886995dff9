"""User interface (layer 6): the Python API, the command line, run directories."""
