"""``thinpipe check``: proves on a user's own model that a pipe computes what one device computes.

::

    command     the words of the command line
    options     reads them
    target      finds the user's factory and calls it
    subject     the model, its inputs and its loss, as every run of the check gets them
    draws       finds the layers that draw random numbers
    traits      what it is about the model that decides with what it can be compared
    step        one training step, and everything that can be seen of it afterwards
    references  what "one device" means: the whole batch, or the same micro-batches one after the other
    compare     the largest difference between two steps, quantity by quantity
    cases       which splits, chunks and checkpoint modes are tried, and how each of them ended
    runner      runs the cases
    report      the tables, the verdict, the JSON object
"""
