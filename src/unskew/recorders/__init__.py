"""What a function computes on tensors at fixed addresses, recorded once and replayed without Python between
its operations."""
