"""Medical volumes as sets of slices: the files, the values of their voxels, and the slicing."""
