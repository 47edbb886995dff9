"""The `orchestrate` strategy: the CPU and the device share the bottom layer (NeutronOrch)."""
