"""Graphs of operators on tensors with padding, so that one program serves many sizes.

A size that varies is a symbol. Each dim of a tensor is known to be a product of factors, numbers and symbols;
along a symbol there is room past the true elements, and what lies there is anything. A rule for each operator
says how it is done so that true elements of the results are what they would be without padding. An operator
without a rule, or a call that its rule does not cover, raises `Unsuited`: the graph is run on true sizes.

    dims        factors of a dim
    sized       a node as the call that rules see
    bounds      indices are checked against true sizes
    arithmetic  sizes as numbers in arithmetic
    pointwise, shapes, attention    rules for what only graphs have
    rules       these, and those of core's table
    run         a graph, node after node
"""
