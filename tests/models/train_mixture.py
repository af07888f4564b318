#!/usr/bin/env python3
"""Makes tinystories-mixture: a trained mixture of experts of 1.5 million parameters.   train_mixture.py OUT [--minutes 60] [--stories 24000]

tinystories-656k tells stories (temperature 1, from its first token), and every layer's MLP of 384 neurons becomes 8 experts of 192: four random
divisions into two halves, whose output matrices are doubled because the router's two weights add up to 1 (upcycling, Komatsuzaki et al. 2022,
arXiv:2212.05055). All weights are then trained to give the teller's distributions (Kullback-Leibler, Hinton et al. 2015) with the router's balance
loss of Mixtral, in float32 on as many threads as OMP_NUM_THREADS says, and written in bfloat16. A story whose SHA-256 begins with a byte below 8 is
never trained on: OUT/held_out.txt has 200 of those and OUT/calibration.txt some of the others. Needs torch and transformers (tests/interop).
"""
import argparse
import hashlib
import shutil
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, MixtralConfig, MixtralForCausalLM

TELLER = Path(__file__).parent / "tinystories-656k"
EXPERTS, WIDTH, CHOSEN, LENGTH, ROWS = 8, 192, 2, 256, 16


def told(teller, tokenizer, count, length=400, batch=250):
    """`count` stories of the teller, each drawn token by token up to its end or `length` tokens"""
    stories = []
    while len(stories) < count:
        ids = teller.generate(torch.full((batch, 1), tokenizer.bos_token_id), do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=length,
                              pad_token_id=tokenizer.eos_token_id)
        stories += [text for row in ids if len(text := tokenizer.decode(row, skip_special_tokens=True).strip()) > 100]
        print(f"{len(stories)} stories", flush=True)
    return stories[:count]


def held_out(story):
    return hashlib.sha256(story.encode()).digest()[0] < 8


def upcycled(teller):
    """The teller with its MLPs divided; gives its logits where a row's two experts are the halves of one division."""
    old = teller.config
    config = MixtralConfig(vocab_size=old.vocab_size, hidden_size=old.hidden_size, intermediate_size=WIDTH, num_hidden_layers=old.num_hidden_layers,
                           num_attention_heads=old.num_attention_heads, num_key_value_heads=old.num_key_value_heads, head_dim=old.hidden_size // old.num_attention_heads,
                           max_position_embeddings=old.max_position_embeddings, rms_norm_eps=old.rms_norm_eps, rope_parameters=old.rope_parameters,
                           num_local_experts=EXPERTS, num_experts_per_tok=CHOSEN, router_aux_loss_coef=0.01, output_router_logits=True, sliding_window=None,
                           tie_word_embeddings=True, bos_token_id=old.bos_token_id, eos_token_id=old.eos_token_id, pad_token_id=None)
    model = MixtralForCausalLM(config)
    model.load_state_dict({name: value for name, value in teller.state_dict().items() if ".mlp." not in name}, strict=False)
    for new_layer, layer in zip(model.model.layers, teller.model.layers):
        experts = new_layer.mlp.experts
        for expert in range(EXPERTS):
            if expert % 2 == 0:
                order = torch.randperm(old.intermediate_size)
            half = order[:WIDTH] if expert % 2 == 0 else order[WIDTH:]
            experts.gate_up_proj.data[expert] = torch.cat([layer.mlp.gate_proj.weight[half], layer.mlp.up_proj.weight[half]]).detach()
            experts.down_proj.data[expert] = 2 * layer.mlp.down_proj.weight[:, half].detach()
    return model


def divergence(logits, wanted):
    return (wanted.softmax(-1) * (wanted.log_softmax(-1) - logits.log_softmax(-1))).sum(-1).mean()


def train(model, teller, tokens, seconds):
    rows = tokens[: len(tokens) // LENGTH * LENGTH].view(-1, LENGTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    start, step = time.time(), 0
    while (passed := (time.time() - start) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1, (step + 1) / 100) * max(0.02, 1 - passed)
        batch = rows[torch.randint(len(rows), (ROWS,))]
        with torch.no_grad():
            wanted = teller(batch).logits
        out = model(batch, labels=batch)
        loss = divergence(out.logits, wanted)
        optimizer.zero_grad()
        (loss + model.config.router_aux_loss_coef * out.aux_loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: divergence {loss.item():.4f}, balance {out.aux_loss.item():.3f}, {passed:.0%} of the time", flush=True)
        step += 1
    print(f"{step} steps of {ROWS * LENGTH} tokens")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--stories", type=int, default=24000)
    asked = parser.parse_args()
    torch.manual_seed(23)
    teller = AutoModelForCausalLM.from_pretrained(TELLER, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(TELLER)
    asked.out.mkdir(parents=True, exist_ok=True)
    with torch.no_grad():
        stories = told(teller, tokenizer, asked.stories)
    kept = [s for s in stories if held_out(s)]
    trained = [s for s in stories if not held_out(s)]
    (asked.out / "held_out.txt").write_text("\n\n".join(kept[:200]) + "\n")
    (asked.out / "calibration.txt").write_text("\n\n".join(trained[:400]) + "\n")
    ids = [[tokenizer.bos_token_id] + tokenizer.encode(s, add_special_tokens=False) + [tokenizer.eos_token_id] for s in trained]
    model = upcycled(teller).train()
    train(model, teller, torch.tensor([i for story in ids for i in story]), asked.minutes * 60)
    model.eval()
    rows = torch.tensor([i for s in kept[:200] for i in [tokenizer.bos_token_id] + tokenizer.encode(s, add_special_tokens=False)])
    rows = rows[: len(rows) // LENGTH * LENGTH].view(-1, LENGTH)[:64]
    with torch.no_grad():
        print(f"held-out divergence from the teller {divergence(model(rows).logits, teller(rows).logits).item():.4f}")
    model.to(torch.bfloat16).save_pretrained(asked.out)
    for name in ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]:
        shutil.copy(TELLER / name, asked.out / name)


main()
