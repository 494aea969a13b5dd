"""Dataset folders: plan, index, manifest, commit, verify."""
