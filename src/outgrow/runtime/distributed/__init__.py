"""Worker processes and collective communication."""
