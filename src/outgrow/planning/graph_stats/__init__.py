"""Where a workload's figures come from."""
