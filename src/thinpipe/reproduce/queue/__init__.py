"""``thinpipe reproduce --next``: what is not recorded yet is trained, most urgent first, whenever a machine is idle."""
