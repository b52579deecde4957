"""The operator without the network: its kernels, its own logits, and its answer to sinusoids."""
