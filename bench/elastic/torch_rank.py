# The same with torch.distributed and Gloo: torchrun starts all ranks again.
import os, signal, sys, time
import torch
import torch.distributed as dist

file, _, victim = sys.argv[1:]
steps = 400
was_killed = os.path.exists(file)
dist.init_process_group("gloo")
is_over = False
for step in range(steps):
    if not was_killed and step == steps // 2 and os.environ["RANK"] == victim:
        with open(file + ".new", "w") as out:
            out.write(str(time.time() * 1000))
        os.rename(file + ".new", file)
        os.kill(os.getpid(), signal.SIGKILL)
    x = torch.ones(1 << 18)
    dist.all_reduce(x)
    if is_over or not os.path.exists(file):
        continue
    print(f"gap {time.time() * 1000 - float(open(file).read())}", flush=True)
    is_over = True
dist.destroy_process_group()
