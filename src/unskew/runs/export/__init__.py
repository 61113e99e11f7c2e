"""Export of a finished model for use without unskew: weights, a torch.export program or an ONNX graph."""
