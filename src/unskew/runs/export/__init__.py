"""A finished model for use without unskew: weights, a torch.export program or an ONNX graph, with what
explains them."""
