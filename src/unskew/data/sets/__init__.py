"""One file per named data set: the file's name is the set's name, and its function of that name reads it.

The docstring's first line describes the set, and the rest lists the arrays of its archive. Each file has

    SOURCE = "where to get it (licence)"

    def NAME(ARGUMENT: Annotated[type, range, "meaning"] = default) -> Dataset

Archives are searched in the folder UNSKEW_DATA.
"""
