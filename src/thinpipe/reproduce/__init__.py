"""Tables of Epipe, the prototype that this project began with, measured anew: ``thinpipe reproduce``, a folder each."""
