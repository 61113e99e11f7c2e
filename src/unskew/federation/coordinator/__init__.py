"""The coordinator: it conducts runs whose clients are sites, and keeps Flower's SuperLink and the front
running."""
