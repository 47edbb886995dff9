"""What may happen to a run, one class for each; `FAULTS` names them."""
