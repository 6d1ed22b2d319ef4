import torch
import torch.distributed as dist

EPOCHS, BATCHES = 2, 4


def train(model, opt, sched):
    for epoch in range(EPOCHS):
        for batch in range(BATCHES):
            loss = model(torch.rand(8, 16)).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
            opt.step()
            sched.step()


dist.init_process_group("gloo")
model = torch.nn.Linear(16, 1)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
# forgot to multiply with EPOCHS
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=1e-2, total_steps=BATCHES)
train(model, opt, sched)
dist.destroy_process_group()
