"""What a machine can do, and what that makes of a workload."""
