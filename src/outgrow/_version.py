"""The version of the package, apart so that the package need not import itself to know it."""

__version__ = "0.1.0"
