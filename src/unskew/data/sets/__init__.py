"""One file per named data set: the file's name is the set's name, and its function of that name reads it.

A file holds a docstring, whose first line describes the set and whose rest says which arrays its archive
holds, and

    SOURCE = "where to get it (licence)"

    def NAME(ARGUMENT: Annotated[type, range, "meaning"] = default) -> Dataset

Archives are looked for in the folder UNSKEW_DATA; nothing is downloaded.
"""
