"""Starting the processes of a run, and finding out that one has been started.

local          `torch_pjrt_spmd.launch`: processes on this machine, for notebooks and scripts
worker         what each of them runs
ranks          what their launcher learns of them: results, and the first failure
passing        how functions, results and errors get from one process to another
clusters       the run that Slurm has started this process in, by its variables
on_ray         `launch_on_ray`: a worker on each host of a Ray cluster; ray_train: Ray Train's own loop
checkpoints    folders that appear whole, and the last one, for a run that is restarted
jobset         manifests for Kubernetes; `commands/manifest.py` prints them
"""
