"""What stopping a running workload would cost."""
