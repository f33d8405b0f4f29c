"""Several devices and several hosts: the mesh and its table, agreeing, ending together."""
