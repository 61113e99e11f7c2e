"""One file per model: the file's name is the model's name, and its function of that name makes the model.

A file holds a docstring with a first line that describes the model, and

    def NAME(shape: tuple[int, ...], classes: int, ARGUMENT: Annotated[type, range, "meaning"] = default) ->
    nn.Module

shape: of one sample, without the batch; classes: how many logits the model gives.
"""
