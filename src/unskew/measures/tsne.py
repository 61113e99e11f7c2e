"""t-SNE (van der Maaten and Hinton, JMLR 2008) of features, by scikit-learn: points in the plane for a picture.

Features are reduced to their first 50 principal components, and the embedding begins at the first two. Distances between
far groups, and the sizes of groups, mean little in such a picture. Letters: N points, D features.
"""

from __future__ import annotations

import numpy as np

PERPLEXITY = 30.0
COMPONENTS = 50


def plane(x_ND: np.ndarray, seed: int = 0) -> np.ndarray:
    """Where the points x_ND lie in the plane, [N, 2]: the same for the same points and seed.

    Zeros with fewer than four points, and where the points do not vary.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    x_ND = np.asarray(x_ND, dtype=np.float64)
    N = len(x_ND)
    if N < 4 or not np.isfinite(x_ND).all() or not np.ptp(x_ND, axis=0).any():
        return np.zeros((N, 2))
    with threadpool_limits(1):  # sums over threads would depend on how many there are
        kept = min(COMPONENTS, *x_ND.shape)
        x_ND = PCA(kept, svd_solver="full").fit_transform(x_ND)
        begin = "pca" if kept > 1 else "random"
        perplexity = min(PERPLEXITY, (N - 1) / 3)
        embedding = TSNE(2, perplexity=perplexity, init=begin, learning_rate="auto", random_state=seed, n_jobs=1)
        return embedding.fit_transform(x_ND.astype(np.float32)).astype(np.float64)
