"""The coordinator: it conducts runs with sites as clients, and runs Flower's SuperLink and the front."""
