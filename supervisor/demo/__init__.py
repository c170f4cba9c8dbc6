"""pfsup's main job on a simulated shop, with a proof that nothing was lost and nothing was done twice."""
