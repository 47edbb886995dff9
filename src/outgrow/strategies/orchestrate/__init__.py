"""NeutronOrch: `Orchestrate`, the bottom layer shared between a CPU and a device."""
