"""Graphs of operators on tensors with room, so that one program serves many sizes.

A size that varies is a symbol. Each dim of a tensor is known to be a product of factors, numbers and symbols;
along a symbol there is room past the true elements, and what lies there is anything. A rule for each operator
says how it is done so that true elements of the results are what they would be without room. An operator
without a rule, or a call that its rule does not cover, raises `NotProvable`: the graph is run on true sizes.

    dims        factors of a dim
    sized       tensors with room: how the room is filled
    arithmetic  sizes as numbers in arithmetic
    pointwise, shapes, folds, products, attention, places, rows, losses     the rules
    rules       all of them
    run         a graph, node after node
"""
