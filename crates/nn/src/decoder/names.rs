//! What a decoder's tensors are called here and elsewhere.

/// Whose names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// Of transformers' classes, and of MLX's models.
    HuggingFace,
    /// Of llama.cpp and bitnet.cpp.
    Gguf,
}

/// Here, Hugging Face's, GGUF's.
const WHOLE: [[&str; 3]; 3] = [
    ["embedding", "model.embed_tokens", "token_embd"],
    ["norm", "model.norm", "output_norm"],
    ["head", "lm_head", "output"],
];
/// The same within a layer.
const IN_LAYER: [[&str; 3]; 13] = [
    ["attention.norm", "input_layernorm", "attn_norm"],
    ["attention.q", "self_attn.q_proj", "attn_q"],
    ["attention.k", "self_attn.k_proj", "attn_k"],
    ["attention.v", "self_attn.v_proj", "attn_v"],
    ["attention.q.norm", "self_attn.q_norm", "attn_q_norm"],
    ["attention.k.norm", "self_attn.k_norm", "attn_k_norm"],
    ["attention.sub_norm", "self_attn.attn_sub_norm", "attn_sub_norm"],
    ["attention.out", "self_attn.o_proj", "attn_output"],
    ["mlp.norm", "post_attention_layernorm", "ffn_norm"],
    ["mlp.gate", "mlp.gate_proj", "ffn_gate"],
    ["mlp.up", "mlp.up_proj", "ffn_up"],
    ["mlp.sub_norm", "mlp.ffn_sub_norm", "ffn_sub_norm"],
    ["mlp.down", "mlp.down_proj", "ffn_down"],
];

/// What a tensor of [`super::Decoder::params`] is called there.
pub(super) fn foreign(name: &str, style: Style) -> Option<String> {
    let (part, kind) = name.rsplit_once('.')?;
    let find = |table: &[[&'static str; 3]], part: &str| {
        let [_, hugging_face, gguf] = *table.iter().find(|names| names[0] == part)?;
        Some(if style == Style::HuggingFace { hugging_face } else { gguf })
    };
    match part.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
        None => Some(format!("{}.{kind}", find(&WHOLE, part)?)),
        Some((number, part)) => {
            let layers = if style == Style::HuggingFace { "model.layers" } else { "blk" };
            Some(format!("{layers}.{number}.{}.{kind}", find(&IN_LAYER, part)?))
        }
    }
}

/// Whether a matrix belongs to a layer: of BitNet, these alone are ternary.
pub(super) fn is_in_layer(name: &str) -> bool {
    name.starts_with("layers.")
}

#[cfg(test)]
mod tests {
    use super::super::Decoder;
    use super::*;

    #[test]
    fn every_tensor_has_a_name_elsewhere_and_no_two_the_same() {
        let decoder = Decoder { sub_norms: true, biases: true, head_norms: true, ..Decoder::tiny() };
        for style in [Style::HuggingFace, Style::Gguf] {
            let params = decoder.params().unwrap();
            let names = params.iter().map(|p| foreign(&p.name, style).unwrap_or_else(|| panic!("{}", p.name)));
            assert_eq!(names.collect::<std::collections::BTreeSet<_>>().len(), params.len());
        }
        assert_eq!(foreign("layers.7.attention.q.bias", Style::Gguf).unwrap(), "blk.7.attn_q.bias");
        assert_eq!(foreign("layers.0.other.weight", Style::Gguf), None);
    }
}
