"""The lab: predict a figure, measure it on a running Triton, and see an explanation of what was measured.

    begin(3)                                        # a known config, whatever was tried before
    predict("3a: sixteen clients get … times the rows per second of one", 0.9, 1.5)
    runs = measure(one=arm("food_first"), sixteen=arm("food_first", clients=16))
    answer("3a", times(runs.sixteen, runs.one))
    end()                                           # the server is as it was found

Everything of a student's lab lies in one folder, from which `gourmet lab hand-in` makes a page.
"""
