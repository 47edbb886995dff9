"""HongTu: `Offload`, training chunk by chunk with rows in host memory or on a disk."""
