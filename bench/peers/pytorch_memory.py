"""Bytes of the tensors that PyTorch holds during a step, on any device.

Every storage that an op creates is counted once, from that op until it is freed. Parameters, inputs and everything else
that existed before do not count, nor do the gradients of parameters: this is the definition of Rewind's kept and peak
bytes. Memory that a kernel allocates for itself and frees before it returns is not counted, while Rewind's peak
includes its workspace.
"""
import os
import weakref

# PyTorch requests huge pages from the system only if this is set; Rewind always does. Read when the first large tensor
# is created.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Held(TorchDispatchMode):
    """with Held(model) as held: loss = ...; held.forward_done(); loss.backward()    then kept(), peak()"""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.known = {}  # id of a live storage -> its number
        self.events = []  # (number, bytes), negative bytes when freed
        self.n = 0
        self.at = 0
        for p in list(model.parameters()) + list(model.buffers()):
            self.known[id(p.untyped_storage())] = -1

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for x in tree_leaves((args, kwargs)):
            if isinstance(x, torch.Tensor):
                self.known.setdefault(id(x.untyped_storage()), -1)  # it existed before
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor):
                self.note(x.untyped_storage())
        return out

    def note(self, storage):
        if id(storage) in self.known:
            return
        number, size = self.n, storage.nbytes()
        self.n += 1
        self.known[id(storage)] = number
        self.events.append((number, size))
        weakref.finalize(storage, self.forget, id(storage), number, size).atexit = False

    def forget(self, key, number, size):
        self.known.pop(key, None)
        self.events.append((number, -size))

    def forward_done(self):
        self.at = len(self.events)

    def totals(self):
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        gradients = {self.known.get(id(g.untyped_storage())) for g in grads}
        total, out = 0, [0]
        for number, size in self.events:
            total += 0 if number in gradients else size
            out.append(total)
        return out

    def kept(self):
        return self.totals()[self.at]

    def peak(self):
        return max(self.totals())
