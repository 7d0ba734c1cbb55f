"""Tables of the documents that this project began with, measured anew: ``thinpipe reproduce``, a folder for each."""
