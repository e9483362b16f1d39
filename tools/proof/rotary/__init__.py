"""Find out on a live model how its heads rotate with the positions of tokens.

`rotation`         which rule agrees with the products at non-zero positions
`rotating_twins`   twins of a model that rotate, under its own config and under others
`patch_positions`  positions of image patches on two axes
"""
