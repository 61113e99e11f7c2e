"""Export of a finished model for use without unskew: weights or a torch.export program."""
