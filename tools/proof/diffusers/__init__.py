"""Compare the model classes of diffusers with live models (`python -m tools.prove_diffusers`).

`examples`         a tiny config and inputs for each class
`compare`          the products of one attention layer of a live model against its forms
`prove`            the verdict on a class
"""
