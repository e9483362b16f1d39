"""What training does to the form: starts, a pre-training harness, and the experiment that compares starts."""
