"""Model definitions: each file reads like its paper and names no kernel, process group or batch layout."""
