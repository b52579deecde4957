"""A transformer's forward pass in numpy, position by position, from the formulas and a state dictionary."""

import math

import numpy as np

from attention_oracles import weights_of


def gelu(x):
    return np.array([v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x.ravel()]).reshape(x.shape)


def layer_norm(x, weight, bias):
    out = np.empty_like(x)
    for i, row in enumerate(x):
        mean = row.sum() / len(row)
        variance = ((row - mean) ** 2).sum() / len(row)
        out[i] = (row - mean) / math.sqrt(variance + 1e-5) * weight + bias
    return out


class Oracle:
    """Runs one case at a time, padding cut off; keeps what a trace keeps."""

    def __init__(self, model):
        self.config = model.config
        self.state = {name: value.detach().double().numpy() for name, value in model.state_dict().items()}

    def linear(self, name, x):
        if f"{name}.values" in self.state:
            crow, col = (self.state[f"{name}.{part}_indices"].astype(int) for part in ("crow", "col"))
            out = np.zeros((len(x), len(crow) - 1))
            for row in range(len(crow) - 1):
                for entry in range(crow[row], crow[row + 1]):
                    out[:, row] += self.state[f"{name}.values"][entry] * x[:, col[entry]]
        else:
            out = x @ self.state[f"{name}.weight"].T
        return out + self.state.get(f"{name}.bias", 0.0)

    def norm(self, name, x):
        return layer_norm(x, self.state[f"{name}.weight"], self.state[f"{name}.bias"])

    def embed(self, x):
        config, n = self.config, len(x)
        if config.vocabulary is not None:
            hidden = np.array([self.state["embedding.token.weight"][token] for token in x])
        else:
            hidden = self.linear("embedding.input", x)
        if config.positions == "learned":
            return hidden + self.state["embedding.position.weight"][:n]
        if config.positions == "none":
            return hidden
        K = config.n_frequencies if config.positions == "own" else config.d_model // 2
        code = np.zeros((n, 2 * K))
        for i in range(n):
            for k in range(K):
                angle = i * config.frequency_base ** (-k / K)
                code[i, 2 * k], code[i, 2 * k + 1] = math.sin(angle), math.cos(angle)
        return np.concatenate((code, hidden), axis=1) if config.positions == "own" else hidden + code

    def attention(self, index, x):
        shape, name, n = self.config.layers[index], f"layers.{index}.attention", len(x)
        family = self.config.attention.for_layer(index)
        q = self.linear(f"{name}.query", x)
        k = q if family.shares_queries else self.linear(f"{name}.key", x)
        v = self.linear(f"{name}.value", x)
        weights, parts = [], []
        for h in range(shape.n_heads):
            own, mine = (slice(h * d, (h + 1) * d) for d in (shape.d_head, shape.d_value))
            A = weights_of(
                family, q[:, own], k[:, own], 1 / math.sqrt(shape.d_head), self.config.causal, np.ones(n, bool)
            )
            weights.append(A)
            parts.append(A @ v[:, mine])
        return self.linear(f"{name}.output", np.concatenate(parts, axis=1)), np.array(weights)

    def sublayer(self, norm, x, run):
        config = self.config
        y = run(self.norm(norm, x) if config.norm == "pre" else x)
        y = x + y if config.skip else y
        return self.norm(norm, y) if config.norm == "post" else y

    def run(self, x):
        """Output, and lists of (weights, attended, activations, hidden) per layer."""
        config, kept = self.config, []
        embedded = hidden = self.embed(x)
        for index, shape in enumerate(config.layers):
            found = {}
            if shape.n_heads:

                def attend(u, index=index, found=found):
                    y, found["weights"] = self.attention(index, u)
                    return y

                hidden = self.sublayer(f"layers.{index}.norm_attention", hidden, attend)
                found["attended"] = hidden
            if shape.d_ffn:

                def feed(u, index=index, found=found):
                    up = self.linear(f"layers.{index}.feedforward.up", u)
                    found["activations"] = np.maximum(up, 0) if config.activation == "relu" else gelu(up)
                    return self.linear(f"layers.{index}.feedforward.down", found["activations"])

                hidden = self.sublayer(f"layers.{index}.norm_feedforward", hidden, feed)
            kept.append({"weights": None, "attended": None, "activations": None, **found, "hidden": hidden})
        read = self.norm("final_norm", hidden) if config.norm == "pre" else hidden
        if config.readout == "last":
            read = read[-1:]
        elif config.readout == "mean":
            read = sum(read)[None] / len(read)
        output = read @ self.state["embedding.token.weight"].T if config.tied else self.linear("readout", read)
        return output if config.readout == "position" else output[0], embedded, kept
