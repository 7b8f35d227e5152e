"""Gradient inversion: what an honest but curious server can see of the images behind one client update."""
