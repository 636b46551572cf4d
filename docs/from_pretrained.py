import json
from pathlib import Path

import torch
import torch.nn.functional as F
from huggingface_hub import snapshot_download
from safetensors.torch import load_file


class TinyRecursiveModel:
    @classmethod
    def from_pretrained(cls, name):  # a folder, or a repository of the hub
        folder, model = Path(name) if Path(name).is_dir() else Path(snapshot_download(name)), cls()
        model.w = load_file(folder / "model.safetensors")
        model.__dict__.update(json.loads((folder / "config.json").read_text()))
        return model

    def mix(self, x, name):  # x [B, tokens, channels]: SwiGLU over the last axis, RMSNorm
        gate, up = F.linear(x, self.w[name + ".gate_up"]).chunk(2, -1)
        return F.rms_norm(x + F.linear(F.silu(gate) * up, self.w[name + ".down"]), x.shape[-1:], eps=1e-5)

    def update(self, x):  # the block stack: over tokens, then over channels
        for i in range(self.layers):
            x = self.mix(x.transpose(1, 2), f"blocks.{i}.token_mlp").transpose(1, 2)
            x = self.mix(x, f"blocks.{i}.channel_mlp")
        return x

    @torch.no_grad()
    def solve(self, inputs, steps=None):  # symbols [B, S] -> answers [B, S], halt logits [B]
        x = F.pad(self.w["embed.weight"][inputs.long()], (0, 0, self.puzzle_tokens, 0))
        if self.puzzle_tokens:
            x[:, 0] = self.w["puzzle.weight"][0]
        x, z_H, z_L = x * self.d_model**0.5, self.w["h_init"], self.w["l_init"]
        for _ in range((steps or self.steps) * self.h_cycles):
            inject = z_H + x
            for _ in range(self.l_cycles):
                z_L = self.update(z_L + inject)
            z_H = self.update(z_H + z_L)
        halt = F.linear(z_H[:, 0], self.w["halt.weight"], self.w["halt.bias"])[:, 0]
        return F.linear(z_H[:, self.puzzle_tokens :], self.w["head.weight"]).argmax(-1), halt
