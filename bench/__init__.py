"""The run machinery: spec, plan, run, clusters, workloads; a run leaves a sealed directory behind."""
