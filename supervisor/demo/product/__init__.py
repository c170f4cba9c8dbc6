"""The simulated product: the application's side and the workers of the five domains over the reference tables."""
